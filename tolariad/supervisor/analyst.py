"""Carries out the analysis of checkpoints for pruning: a process for each, one at a time.

Promises: each AnalyzeCheckpoint becomes exactly one AnalysisReply, whatever fails, unless it is cancelled. A result was
checked by core's rules. The checkpoint is not removed meanwhile. A process that does not answer in time is killed, and
none is left after `close`. The run never waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tolariad import run_files
from tolariad.core.inputs import AnalysisReply
from tolariad.core.pruning.analysis import AnalysisAnswer, AnalysisRequest, channels_of, choice_of, refusal_of
from tolariad.core.pruning.words import AnalyzeCheckpoint, CancelAnalysis, PruneAnalyzed
from tolariad.core.settings.pruning import Prune
from tolariad.leyline import MessageRefused
from tolariad.leyline.pruning import LENGTH_BYTES, AnalysisFailed, framed, length_of, read_answer, write_request
from tolariad.loop_files import in_thread
from tolariad.storage import held
from tolariad.supervisor.output import Sink
from tolariad.supervisor.peer_process import PeerFailed, PeerLimits, PeerProcess, stacks_in

_log: Final = logging.getLogger(__name__)

# A process that has closed its connection usually ends within this time, and how it ended is the better reason.
_END_S: Final = 0.5


class AnalystSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and how the process of an analysis is started. `cores`: gives those that it may use; none: all."""

    run_dir: Path
    config: Path
    prune: Prune
    environment: Mapping[str, str]
    sinks: tuple[Sink, ...] = ()
    cores: Callable[[], tuple[int, ...]] = tuple
    limits: PeerLimits = PeerLimits()
    command: tuple[str, ...] = (sys.executable, "-m", "tolariad.trainer", "--analyse")


class Analyst:
    """Belongs to one event loop."""

    def __init__(self, setup: AnalystSetup, submit: Callable[[AnalysisReply], None]) -> None:
        self._setup = setup
        self._submit = submit
        self._task: asyncio.Task[None] | None = None
        self._cycle = 0
        self._ending: set[asyncio.Task[None]] = set()

    def obey(self, effect: AnalyzeCheckpoint | CancelAnalysis) -> None:
        """Begin an analysis, or end the one of this cycle without a reply."""
        if isinstance(effect, CancelAnalysis):
            if self._task is not None and self._cycle == effect.cycle:
                self._task.cancel()
        elif self._task is not None and not self._task.done() and not self._task.cancelling():
            self._submit(
                AnalysisReply(cycle=effect.request.cycle, why=f"the analysis of cycle {self._cycle} is still running")
            )
        else:
            self._cycle = effect.request.cycle
            self._task = asyncio.get_running_loop().create_task(self._analyse(effect, self._task))
            # The loop itself holds a task only weakly.
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)

    async def _analyse(self, effect: AnalyzeCheckpoint, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # It was cancelled, and ends its process: never are there two.
            await asyncio.wait({before})
        found, why = None, ""
        try:
            found = await self._found(effect)
        except (PeerFailed, AnalysisFailed, MessageRefused) as failed:
            why = str(failed)
        except Exception as error:  # noqa: BLE001 - the run goes on, whatever is wrong with an analysis
            _log.exception("Checkpoint %s could not be analysed", effect.request.checkpoint)
            why = f"it could not be begun: {type(error).__name__}: {error}"
        finally:
            if found is None and effect.request.output:
                # A file that no event names would stay for ever.
                with suppress(OSError):
                    await in_thread((self._setup.run_dir / effect.request.output).unlink)
        if why:
            _log.warning("Pruning: the analysis of checkpoint %s gave no result: %s", effect.request.checkpoint, why)
        self._submit(AnalysisReply(cycle=effect.request.cycle, found=found, why=why))

    async def _found(self, effect: AnalyzeCheckpoint) -> PruneAnalyzed:
        """Return the checked result. Raises PeerFailed, AnalysisFailed, MessageRefused, OSError."""
        request = effect.request
        with held(self._setup.run_dir / "checkpoints" / request.checkpoint):
            answer = await self._answer(request, effect.limit_s)
        refusal = refusal_of(request, answer, self._setup.prune)
        if refusal:
            raise AnalysisFailed(f"The answer is refused: {refusal}.")
        if request.output:
            size = await in_thread(_size_of, self._setup.run_dir, request.output)
            if size != answer.file_bytes:
                raise AnalysisFailed(
                    f"The answer is refused: {request.output} has {size} bytes, but it says {answer.file_bytes}."
                )
        return found_in(request, answer)

    async def _answer(self, request: AnalysisRequest, limit_s: float) -> AnalysisAnswer:
        """Return the answer of an idle process, or, if half of the time brings none, of an ordinary one."""
        left_s = limit_s
        if self._setup.prune.analysis_priority == "idle":
            left_s /= 2
            try:
                return await self._attempt(request, left_s, "idle")
            except TimeoutError:
                # Linux lets no process without privileges leave SCHED_IDLE, so another one begins again.
                _log.info(
                    "Pruning: no core was free for %g s to analyse checkpoint %s; its analysis begins again and takes "
                    "its share of a core",
                    *(left_s, request.checkpoint),
                )
        try:
            return await self._attempt(request, left_s, "normal")
        except TimeoutError:
            raise AnalysisFailed(f"It did not answer within {limit_s:g} s (prune.analysis_timeout_s).") from None

    async def _attempt(self, request: AnalysisRequest, limit_s: float, priority: str) -> AnalysisAnswer:
        """Return the answer of one process. Raises TimeoutError, AnalysisFailed, MessageRefused, OSError."""
        process = self._started(priority)
        try:
            async with asyncio.timeout(limit_s):
                return await _asked(process, request, limit_s)
        except TimeoutError:
            await process.kill_with_stacks()
            raise
        except PeerFailed as failed:
            has_ended = await process.gone_within(_END_S)
            raise AnalysisFailed(f"Its process {process.how if has_ended else failed}.") from failed
        finally:
            output = await process.end()
            if stacks := stacks_in(output):
                _log.warning("The stacks of the analysis, before it was killed:\n%s", stacks)

    def _started(self, priority: str) -> PeerProcess:
        setup = self._setup
        command = (
            *(*setup.command, "--run", str(setup.run_dir), "--config-json", str(setup.config)),
            *("--cores", ",".join(map(str, setup.cores())), "--priority", priority),
        )
        return PeerProcess(*("analysis", command, setup.environment, setup.sinks, setup.limits))

    async def close(self) -> None:
        """End the process, and drop what is in flight."""
        for task in tuple(self._ending):
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


async def _asked(process: PeerProcess, request: AnalysisRequest, limit_s: float) -> AnalysisAnswer:
    request_id = str(uuid.uuid4())
    await process.send(framed(write_request(request, request_id, limit_s)))
    size = length_of(await process.receive(LENGTH_BYTES))
    return read_answer(await process.receive(size), request_id)


def found_in(request: AnalysisRequest, answer: AnalysisAnswer) -> PruneAnalyzed:
    """Return the event with the part of the answer that the journal keeps."""
    choice = choice_of(answer.groups, answer.shapes, answer.parameters, request)
    return PruneAnalyzed(
        cycle=request.cycle,
        decision=answer.decision,
        reasons=answer.reasons,
        units=answer.units,
        sha256=answer.masks_sha256,
        plan=answer.plan,
        channels=sum(len(answer.units.get(layer.name, ())) * layer.channels for layer in choice.layers),
        total=channels_of(choice.layers),
        pruned_parameters=answer.parameters_masked,
        total_parameters=choice.total,
        groups=len(answer.groups),
        refused=len(answer.refused),
        samples=answer.samples,
        estimator=answer.estimator,
        accuracy=answer.measured.accuracy_before,
        accuracy_masked=answer.measured.accuracy,
        spread=answer.measured.spread,
        correlation=answer.correlation,
        stability=answer.stability,
        importance=request.output,
        importance_size=answer.file_bytes,
        seconds=answer.seconds,
    )


def _size_of(run: Path, file: str) -> int:
    """Return the size of a file of the run; 0 if it is not there."""
    try:
        descriptor = run_files.open_file(run, file, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
