"""The strategy of a run under the daemon, as its configuration names it.

Promise: a run that asks nobody loads neither the strategy's code nor protobuf.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tolariad.core.inputs import StrategyReply, VoteGiven
from tolariad.core.run.slice import TRAINING
from tolariad.core.settings import strategies
from tolariad.core.settings.model import Settings
from tolariad.core.state import RunState
from tolariad.core.strategy.ask import acts
from tolariad.core.strategy.words import AskStrategy, AskVote
from tolariad.loop_files import in_thread
from tolariad.supervisor.output import Sink

if TYPE_CHECKING:
    from tolariad.supervisor.asking import StrategyAsker

_log: Final = logging.getLogger(__name__)


class Asking:
    """Belongs to the event loop of the main thread."""

    def __init__(
        self, settings: Settings, sinks: tuple[Sink, ...], submit: Callable[[StrategyReply | VoteGiven], None]
    ) -> None:
        """`sinks` get the output of a strategy that runs in a process of its own."""
        self._settings = settings
        self._sinks = sinks
        self._submit = submit
        self._asker: asyncio.Task[StrategyAsker] | None = None
        self._orders: set[asyncio.Task[None]] = set()

    def prepare(self, state: RunState) -> None:
        """Start the strategy if the run has one, so that it is ready at the first question: beside the trainer."""
        if state.run.phase in TRAINING and acts(state):
            self._started()

    def _started(self) -> asyncio.Task[StrategyAsker]:
        if self._asker is None:
            self._asker = asyncio.create_task(self._begin())
        return self._asker

    async def settled(self) -> None:
        """Start the strategy, and return when it can be asked or its start has failed."""
        await (await asyncio.shield(self._started())).settled()

    async def _begin(self) -> StrategyAsker:
        # To import protobuf takes 0.2 s, for which the loop must not stand.
        await in_thread(load)
        return _asker(self._settings, self._sinks, self._submit)

    def obey(self, effect: AskStrategy | AskVote, state: RunState) -> None:
        """Begin what the effect asks for. `state`: the durable one."""
        task = asyncio.create_task(self._obey(self._started(), effect, state))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    @staticmethod
    async def _obey(asker: asyncio.Task[StrategyAsker], effect: AskStrategy | AskVote, state: RunState) -> None:
        try:
            found = await asyncio.shield(asker)
        except Exception:  # noqa: BLE001 - the kernel ends the question by its deadline, and the run goes on
            _log.exception("The strategy cannot be asked")
            return
        found.obey(effect, state)

    async def close(self) -> None:
        """End the strategy, and everything that it started."""
        for task in tuple(self._orders):
            task.cancel()
        if self._asker is None:
            return
        try:
            await (await self._asker).close()
        except Exception:  # noqa: BLE001 - the daemon must leave in any case
            _log.exception("The strategy was not ended in order")


def load() -> None:
    """Import what the first question needs."""
    import tolariad.strategy
    import tolariad.supervisor.asking  # noqa: F401 - imported for later


def _asker(
    settings: Settings, sinks: tuple[Sink, ...], submit: Callable[[StrategyReply | VoteGiven], None]
) -> StrategyAsker:
    from tolariad.strategy import DefaultStrategy, PolicyLimits
    from tolariad.supervisor.asking import StrategyAsker
    from tolariad.supervisor.strategist import Strategist
    from tolariad.supervisor.strategy_process import StrategyLimits, StrategySetup

    setup = StrategySetup(
        strategy=strategies.who_decides(settings, 1),
        environment=dict(os.environ),
        sinks=sinks,
        limits=StrategyLimits(answer_s=settings.integration.tamiyo_timeout_s),
    )
    limits = PolicyLimits(blueprints=settings.seeds.blueprints) if settings.seeds.blueprints else PolicyLimits()
    return StrategyAsker(Strategist(setup, lambda: DefaultStrategy(limits)), submit)
