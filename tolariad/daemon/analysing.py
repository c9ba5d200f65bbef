"""The analysis of checkpoints for pruning, as a run's configuration asks for it.

Promise: a run that analyses nothing loads neither the analyst's code nor protobuf.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.daemon.lazy import Lazy
from tolariad.daemon.settings import RESOLVED_NAME
from tolariad.loop_files import in_thread
from tolariad.supervisor.output import Sink

if TYPE_CHECKING:
    from tolariad.attach import words
    from tolariad.supervisor.analyst import Analyst
    from tolariad.supervisor.analyst_of_program import AnalystOfProgram

_log: Final = logging.getLogger(__name__)


class Analysing:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        run_dir: Path,
        sinks: tuple[Sink, ...],
        submit: Callable[[m.AnalysisReply], None],
        *,
        core: Callable[[], tuple[int, ...]] = tuple,
        cores: tuple[int, ...] = (),
        ask: Callable[[words.Word], None] | None = None,
    ) -> None:
        """`sinks` get the output of the process. `core`, `cores`: as in AnalystSetup.

        `ask`: sends a message to the program that analyses; None: a process of ours does.
        """
        self._settings, self._run_dir, self._sinks = settings, run_dir, sinks
        self._submit, self._core, self._cores, self._ask = submit, core, cores, ask
        self._analyst = Lazy(self._begin, "The analysis")
        self._of_program: AnalystOfProgram | None = None

    def obey(self, effect: m.AnalyzeCheckpoint | m.CancelAnalysis) -> None:
        """Begin an analysis, or end one."""
        self._analyst.use(lambda analyst: analyst.obey(effect), lambda error: self._fail(effect, error))

    async def _begin(self) -> Analyst:
        # To import protobuf takes 0.2 s.
        await in_thread(_load)
        from tolariad.supervisor.analyst import Analyst, AnalystSetup

        setup = AnalystSetup(
            run_dir=self._run_dir,
            config=self._run_dir / RESOLVED_NAME,
            prune=self._settings.prune,
            environment=dict(os.environ),
            sinks=self._sinks,
            core=self._core,
            cores=self._cores,
        )
        if self._ask is None:
            return Analyst(setup, self._submit)
        from tolariad.supervisor.analyst_of_program import AnalystOfProgram

        self._of_program = AnalystOfProgram(setup, self._submit, self._ask)
        return self._of_program

    def take(self, answer: words.Analysed) -> None:
        """Take the answer of the program that was asked."""
        if self._of_program is not None:
            self._of_program.take(answer)

    def _fail(self, effect: m.AnalyzeCheckpoint | m.CancelAnalysis, error: Exception) -> None:
        _log.exception("Nothing can be analysed")
        if isinstance(effect, m.AnalyzeCheckpoint):
            self._submit(m.AnalysisReply(cycle=effect.request.cycle, why=f"nothing can be analysed: {error}"))

    async def close(self) -> None:
        """End the analysis, and everything that it started."""
        await self._analyst.close()


def _load() -> None:
    """Import what the first analysis needs."""
    import tolariad.supervisor.analyst  # noqa: F401 - imported for later
