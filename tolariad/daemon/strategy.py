"""The strategy of a run under the daemon, as its configuration names it.

Promise: a run that asks nobody loads neither the strategy's code nor protobuf.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.settings import strategies
from tolariad.core.calc.settings.model import Settings
from tolariad.core.state.run_state import RunState
from tolariad.daemon.lazy import Lazy
from tolariad.loop_files import in_thread
from tolariad.supervisor.output import Sink

if TYPE_CHECKING:
    from tolariad.strategy.process.questions import StrategyAsker

_log: Final = logging.getLogger(__name__)


class Asking:
    """Belongs to the event loop of the main thread."""

    def __init__(
        self, settings: Settings, sinks: tuple[Sink, ...], submit: Callable[[m.StrategyReply | m.VoteGiven], None]
    ) -> None:
        """`sinks` get the output of a strategy that runs in a process of its own."""
        self._settings = settings
        self._sinks = sinks
        self._submit = submit
        self._asker = Lazy(self._begin, "The strategy")

    def prepare(self, state: RunState) -> None:
        """Start the strategy if the run has one, so that it is ready at the first question: beside the trainer."""
        if state.run.phase in st.TRAINING and q.strategy_acts(state):
            self._asker.started()

    async def settled(self) -> None:
        """Start the strategy, and return when it can be asked or its start has failed."""
        await (await asyncio.shield(self._asker.started())).settled()

    async def _begin(self) -> StrategyAsker:
        # To import protobuf takes 0.2 s.
        await in_thread(load)
        return _asker(self._settings, self._sinks, self._submit)

    def obey(self, effect: m.AskStrategy | m.AskVote, state: RunState) -> None:
        """Begin what the effect asks for. `state`: the durable one."""
        self._asker.use(lambda asker: asker.obey(effect, state), _fail)

    async def close(self) -> None:
        """End the strategy, and everything that it started."""
        await self._asker.close()


def _fail(_: Exception) -> None:
    # The kernel ends the question by its deadline, and the run goes on.
    _log.exception("The strategy cannot be asked")


def load() -> None:
    """Import what the first question needs."""
    import tolariad.strategy
    import tolariad.strategy.process.questions  # noqa: F401 - imported for later


def _asker(
    settings: Settings, sinks: tuple[Sink, ...], submit: Callable[[m.StrategyReply | m.VoteGiven], None]
) -> StrategyAsker:
    from tolariad.strategy import DefaultStrategy, PolicyLimits
    from tolariad.strategy.process.child import StrategyLimits, StrategySetup
    from tolariad.strategy.process.questions import StrategyAsker
    from tolariad.strategy.process.strategist import Strategist

    setup = StrategySetup(
        strategy=strategies.who_decides(settings, 1),
        environment=dict(os.environ),
        sinks=sinks,
        limits=StrategyLimits(answer_s=settings.integration.tamiyo_timeout_s),
    )
    limits = PolicyLimits(blueprints=settings.seeds.blueprints) if settings.seeds.blueprints else PolicyLimits()
    return StrategyAsker(Strategist(setup, lambda: DefaultStrategy(limits)), submit)
