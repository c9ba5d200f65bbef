"""Carries out what core asks of the strategy: questions after epochs, and votes in rollbacks.

Promises: each question and each vote becomes exactly one input to the kernel, whatever fails. The strategy begins every
question with the state that the journal knows, so a void answer leaves no trace in it. Nothing here waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from tolariad.core import messages as m
from tolariad.core.state.run_state import RunState
from tolariad.leyline import HardwareContext, MessageRefused, encode
from tolariad.strategy.process.orders import translated
from tolariad.strategy.process.state_packet import packet_of
from tolariad.strategy.process.strategist import Strategist, StrategyVote
from tolariad.supervisor.hardware import HardwareProbe

_log: Final = logging.getLogger(__name__)


class _Moment(NamedTuple):
    """A time by the clock, and how long this thread has run until then, in seconds."""

    clock: float
    ran: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.perf_counter(), time.thread_time())

    def idle_since(self, before: _Moment) -> float:
        """Return for how long this thread has not run since then. Between the two it must wait for nothing."""
        return max(0.0, (self.clock - before.clock) - (self.ran - before.ran))


class StrategyAsker:
    """Belongs to the event loop of the main thread."""

    def __init__(self, strategist: Strategist, submit: Callable[[m.StrategyReply | m.VoteGiven], None]) -> None:
        """Start the strategy."""
        self._strategist = strategist
        self._submit = submit
        self._probe: HardwareProbe | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        strategist.start()

    async def settled(self) -> None:
        """Wait until the strategy can be asked, or its start has failed."""
        await self._strategist.settled()

    def obey(self, effect: m.AskStrategy | m.AskVote, state: RunState) -> None:
        """Begin what the effect asks for. `state`: the durable one."""
        if isinstance(effect, m.AskStrategy):
            self._start(self._ask(effect, state))
        else:
            self._start(self._ask_vote(effect))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        # The loop itself holds a task only weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, effect: m.AskStrategy, state: RunState) -> None:
        try:
            reply = await self._answer(effect, state)
        except Exception as error:  # noqa: BLE001 - the run goes on, whatever is wrong with a packet or an answer
            _log.exception("The strategy could not be asked after epoch %d", effect.epoch)
            misread = int(isinstance(error, MessageRefused))
            why = f"it could not be asked: {error}"
            reply = m.StrategyReply(generation=effect.generation, fallback=why, misread=misread)
        self._submit(reply)

    async def _answer(self, effect: m.AskStrategy, state: RunState) -> m.StrategyReply:
        began = _Moment.now()
        packet = packet_of(state, effect.epoch, self._hardware(state), uuid.uuid4().hex, time.time_ns())
        assembled = _Moment.now()
        size = len(encode(packet))
        encoded = _Moment.now()
        self._strategist.restore(effect.state)
        answer = await self._strategist.ask(packet, effect.generation)
        answered = _Moment.now()
        commands = tuple(map(translated, answer.commands))
        checked = _Moment.now()
        spans = m.StrategySpans(
            assembly=assembled.clock - began.clock,
            encoding=encoded.clock - assembled.clock,
            answer=answered.clock - encoded.clock,
            check=checked.clock - answered.clock,
            waits=m.StrategyWaits(
                assembly=assembled.idle_since(began),
                encoding=encoded.idle_since(assembled),
                answer=answer.waited,
                check=checked.idle_since(answered),
            ),
        )
        return m.StrategyReply(
            generation=effect.generation,
            commands=commands,
            state=answer.state,
            spans=spans,
            packet_bytes=size,
            fallback=answer.fallback,
            is_late=answer.is_late,
            misread=answer.misread,
        )

    def _hardware(self, state: RunState) -> HardwareContext:
        """Return the figures of the device that the run's trainer reported."""
        device = state.strategy.device or "cpu"
        if self._probe is None or self._probe.device != device:
            self._probe = HardwareProbe(device)
        return self._probe.read()

    async def _ask_vote(self, effect: m.AskVote) -> None:
        began = time.perf_counter()
        try:
            vote = await self._strategist.vote(effect.state, effect.limit_s)
        except Exception as error:  # noqa: BLE001 - a rollback depends on nobody's vote
            _log.exception("The strategy could not be asked for its vote")
            vote = StrategyVote(m.Vote.ABSTAINED, f"it could not be asked: {error}")
        given = m.VoteGiven(
            rollback=effect.rollback,
            checkpoint=effect.checkpoint,
            vote=vote.vote,
            why=vote.why,
            seconds=time.perf_counter() - began,
        )
        self._submit(given)

    async def close(self) -> None:
        """Drop what is in flight, and end the strategy."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._strategist.close()
