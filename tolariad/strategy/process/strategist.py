"""Asks the strategy (Tamiyo) of a run: the default policy in this process, a user's in a process of its own.

Promises: `ask`, `restore`, `vote` and `close` never raise, except that a caller may cancel them. Every command that
`ask` returns could be read; whether it is obeyed, the caller decides for each. `ask` returns after at most `answer_s`;
without an answer it returns no command, the state of the last good answer, and the reason. Strategy and state never
disagree: before the next question the strategy goes back to the state that the run has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.settings.strategies import DEFAULT
from tolariad.leyline import AdaptationCommand, MessageRefused, SystemStatePacket
from tolariad.strategy import AnswerRefused, DefaultStrategy, StateRefused, Strategy, answer_of, read_commands
from tolariad.strategy.interface import call_optional
from tolariad.strategy.process.child import Answer, Refused, StrategyFailed, StrategySetup
from tolariad.strategy.process.keeper import StrategyKeeper
from tolariad.strategy.state import read_state, write_state

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")


class StrategyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one packet.

    * `commands`: the commands of the strategy; empty if there is no answer.
    * `state`: what the strategy remembers after this packet, encoded by `tolariad.strategy.state`.
    * `seconds`: the time from the question to the answer.
    * `waited`: the part of `seconds` in which the strategy waited for a processor.
    * `fallback`: the reason why there is no answer, as a sentence; "" if there is one.
    * `is_late`: True if there is no answer because it did not come in time.
    * `misread`: the number of messages that could not be read, such as commands of another version.
    """

    commands: tuple[AdaptationCommand, ...] = ()
    state: bytes = b""
    seconds: float = 0.0
    waited: float = 0.0
    fallback: str = ""
    is_late: bool = False
    misread: int = 0


class StrategyVote(msgspec.Struct, frozen=True):
    """A strategy's vote on a rollback. `why` is its reason, as a sentence; "" if it agreed."""

    vote: m.Vote
    why: str = ""


class _Late(StrategyFailed):
    """There was no answer in time."""


class _Decider(Protocol):
    """The side that answers, in this process or in another. Its methods raise StrategyFailed and the errors of an
    answer.
    """

    @property
    def problem(self) -> str: ...

    @property
    def source_hash(self) -> str: ...

    @property
    def waited_s(self) -> float:
        """Since a fixed time, how long what decides has not run although it could have."""

    def start(self) -> None: ...

    async def settled(self) -> None: ...

    def step(self, generation: int, packet: SystemStatePacket, state: bytes) -> Coroutine[Any, Any, Answer]: ...

    def vote(self, state: bytes) -> Coroutine[Any, Any, None]: ...

    def give_up(self, why: str) -> None: ...

    async def close(self) -> None: ...


class _BuiltIn:
    """The default policy. It is bounded by construction, so it is called in the loop."""

    problem = ""
    source_hash = ""

    def __init__(self, make: Callable[[], Strategy]) -> None:
        self._make = make
        self._strategy = make()
        self._holds: bytes | None = b""

    @property
    def waited_s(self) -> float:
        """It never waits for anything but a processor and the interpreter's lock: all time without this thread."""
        return time.perf_counter() - time.thread_time()

    def start(self) -> None:
        """Nothing has to be started."""

    async def settled(self) -> None:
        """It can always be asked."""

    async def step(self, _: int, packet: SystemStatePacket, state: bytes) -> Answer:
        """Return the answer of the policy with this state."""
        try:
            if self._holds != state:
                self._go_to(state)
            self._holds = None
            commands = answer_of(self._strategy, packet)
            self._holds = write_state(call_optional(self._strategy, "state_dict"))
        except (AnswerRefused, StateRefused):
            raise
        except Exception as error:
            raise Refused(f"failed: {type(error).__name__}: {error}") from error
        return Answer(commands, self._holds)

    def _go_to(self, state: bytes) -> None:
        if state:
            call_optional(self._strategy, "load_state_dict", read_state(state))
        else:
            self._strategy = self._make()

    async def vote(self, state: bytes) -> None:
        """Return if the policy can go back to the state. Raises Refused."""
        try:
            if state:
                call_optional(self._strategy, "prepare_rollback", read_state(state))
        except Exception as error:
            raise Refused(str(error)) from error

    def give_up(self, why: str) -> None:
        """Nothing is pending."""

    async def close(self) -> None:
        """Nothing has to be ended."""


class Strategist:
    """Belongs to the event loop of the main thread."""

    def __init__(self, setup: StrategySetup, make_default: Callable[[], Strategy] = DefaultStrategy) -> None:
        """Start nothing yet. `make_default`: makes the policy for the strategy `default`."""
        self._name = setup.shown
        self._answer_s = setup.limits.answer_s
        self._decider: _Decider = _BuiltIn(make_default) if setup.strategy == DEFAULT else StrategyKeeper(setup)
        self._state = b""
        # One question at a time: an answer belongs to the question before it.
        self._one_at_a_time = asyncio.Lock()

    @property
    def source_hash(self) -> str:
        """SHA-256 of the user's file, in hexadecimal; "" if there is none, or it is not known yet."""
        return self._decider.source_hash

    @property
    def problem(self) -> str:
        """Why the strategy could not answer now, as a clause; "" if it could."""
        return self._decider.problem

    def start(self) -> None:
        """Begin to start the process, so that it is ready at the first question. A no-op for the default policy."""
        self._decider.start()

    async def settled(self) -> None:
        """Start it, and wait until it can be asked or its start has failed."""
        await self._decider.settled()

    async def ask(self, packet: SystemStatePacket, generation: int) -> StrategyAnswer:
        """Return the strategy's answer, or why there is none."""
        started, waited_before = time.perf_counter(), self._decider.waited_s
        is_late, misread = False, 0
        try:
            question = self._decider.step(generation, packet, self._state)
            answer = await self._in_turn(question, self._answer_s, "did not answer")
            commands = read_commands(answer.commands)
        except (StrategyFailed, AnswerRefused, StateRefused, MessageRefused) as failed:
            why, is_late = str(failed), isinstance(failed, _Late)
            misread = sum(isinstance(one, MessageRefused) for one in (failed, failed.__cause__))
        except Exception as error:  # noqa: BLE001 - the run goes on, whatever is wrong with the strategy
            _log.exception("The strategy %s could not be asked", self._name)
            why = f"could not be asked: {type(error).__name__}: {error}"
        else:
            self._state = answer.end
            seconds = time.perf_counter() - started
            waited = min(seconds, max(0.0, self._decider.waited_s - waited_before))
            return StrategyAnswer(commands=commands, state=self._state, seconds=seconds, waited=waited)
        text = f"The strategy {self._name}: {why}"
        _log.warning("%s. The run goes on without its answer.", text.rstrip("."))
        seconds = time.perf_counter() - started
        return StrategyAnswer(state=self._state, seconds=seconds, fallback=text, is_late=is_late, misread=misread)

    async def _in_turn(self, question: Coroutine[Any, Any, T], limit_s: float, what: str) -> T:
        """Ask when no other question is open, and wait at most `limit_s`. Raises what the question raises."""
        has_turn = False
        try:
            async with asyncio.timeout(limit_s), self._one_at_a_time:
                has_turn = True
                return await question
        except (TimeoutError, asyncio.CancelledError) as ended:
            why = f"{what} within {limit_s:g} s"
            if has_turn:
                self._decider.give_up(why)
            if isinstance(ended, TimeoutError):
                raise _Late(self._decider.problem or why) from ended
            raise
        finally:
            question.close()

    def restore(self, state: bytes) -> None:
        """Make the strategy go back to this state before the next question. b"": to its beginning."""
        self._state = state

    async def vote(self, state: bytes, limit_s: float) -> StrategyVote:
        """Ask whether the strategy can go back to this state. Waits at most `limit_s`."""
        try:
            await self._in_turn(self._decider.vote(state), limit_s, "did not vote")
        except Refused as refused:
            return self._voted(m.Vote.REFUSED, str(refused))
        except StrategyFailed as failed:
            return self._voted(m.Vote.ABSTAINED, str(failed))
        except Exception as error:  # noqa: BLE001 - as in `ask`
            _log.exception("The strategy %s could not be asked for its vote", self._name)
            return self._voted(m.Vote.ABSTAINED, f"{type(error).__name__}: {error}")
        return StrategyVote(m.Vote.AGREED)

    def _voted(self, vote: m.Vote, why: str) -> StrategyVote:
        return StrategyVote(vote, f"The strategy {self._name}: {why}")

    async def close(self) -> None:
        """End the process and everything that it started."""
        await self._decider.close()
