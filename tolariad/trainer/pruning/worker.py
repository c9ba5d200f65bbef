"""The process that analyses a checkpoint: one request, one answer, and its end.

The daemon starts it (`tolariad/supervisor/analyst.py`) and says on which cores. Promises: it has one thread for torch.
It runs only if nothing else wants its core (SCHED_IDLE), unless it is told to be an ordinary process. It is tied to the
daemon before torch is imported, and is the first to go if memory runs out. Any failure is an answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tolariad import lifelines, run_files

if TYPE_CHECKING:
    from tolariad.core.calc.pruning.analysis import AnalysisAnswer, AnalysisRequest
    from tolariad.trainer.tasks.task import FoundTask

CONFIG_BYTES_MAX = 1 << 24
_WHY_CHARS = 900


def stand_back(cores: Collection[int], *, idle: bool) -> None:
    """Run on these cores only, if any are named; with `idle` only if nothing else wants them. A refusal is ignored."""
    steps: list[Callable[[], object]] = [lambda: os.sched_setaffinity(0, cores)] if cores else []
    if idle:
        # Being nice also lowers the priority of its reads from the disk, for the journal's writes. SCHED_IDLE is last:
        # on a busy core, minutes may pass before the process gets to its next line.
        steps += [lambda: os.nice(19), lifelines.be_the_nicest_session]
        steps.append(lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))
    for give_way in steps:
        try:
            give_way()
        except OSError:
            # A container may forbid it. Then the process is an ordinary one with one thread.
            continue


def answer(run: Path, config: Path, request: AnalysisRequest, started: float) -> AnalysisAnswer | str:
    """Return the analysis, or a sentence: why there is none."""

    def resolved() -> bytes:
        from tolariad.trainer.torch_private import light_start

        light_start.install()
        return run_files.read_file(config.parent, config.name, CONFIG_BYTES_MAX)

    return answer_by(run, resolved, request, started)


def answer_by(
    run: Path, resolved: Callable[[], bytes], request: AnalysisRequest, started: float, given: FoundTask | None = None
) -> AnalysisAnswer | str:
    """Return the analysis, or a sentence: why there is none. `resolved` is called first: it reads the configuration.

    `given`: the task, if it is not the one that the configuration names.
    """
    try:
        config = resolved()
        from tolariad.trainer.pruning.analysing import analyse

        return analyse(run, config, request, started, given)
    except Exception as error:  # noqa: BLE001 - whatever the task or its data raise is the answer
        return _told(error)


def _told(error: Exception) -> str:
    """Return the reason in a line, and write the traceback to stderr, which the daemon logs."""
    from tolariad.storage import CheckpointUnusable
    from tolariad.trainer.errors import SetupRefused
    from tolariad.trainer.process.own_frames import shown
    from tolariad.trainer.pruning.units import PruningRefused

    if isinstance(error, PruningRefused | SetupRefused):
        return f"The model cannot be analysed: {error}"[:_WHY_CHARS]
    if isinstance(error, CheckpointUnusable):
        return f"The checkpoint cannot be used: {error}"[:_WHY_CHARS]
    sys.stderr.write(shown(error))
    return f"The analysis raised {type(error).__name__}: {error}"[:_WHY_CHARS]
