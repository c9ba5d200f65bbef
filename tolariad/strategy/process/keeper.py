"""Keeps one process of a user's strategy running, and asks it.

Promises: there is never a second process beside one that is not reaped. A process that breaks the protocol or does not
answer is killed and started again. After a good answer that happens at once, otherwise after a wait that doubles. While
none is ready a question is refused at once, except during a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Final

from tolariad.leyline import SystemStatePacket, encode
from tolariad.processor_time import waited_s
from tolariad.strategy.frames import Kind
from tolariad.strategy.process.child import (
    Answer,
    Refused,
    StrategyFailed,
    StrategyProcess,
    StrategySetup,
)
from tolariad.strategy.state import StateRefused, read_state
from tolariad.supervisor.peer_process import stacks_in

_log: Final = logging.getLogger(__name__)

_DOUBLINGS_MAX: Final = 16


class StrategyKeeper:
    """Keeps a strategy's process ready. It belongs to the event loop of the main thread.

    `problem` is the reason why no process is ready, as a clause.
    """

    def __init__(self, setup: StrategySetup) -> None:
        self._setup, self._limits = setup, setup.limits
        self.problem = "has not been started"
        self.source_hash = ""
        # The process that may be asked; `_living` is also one that starts or ends.
        self._process: StrategyProcess | None = None
        self._living: StrategyProcess | None = None
        # The state at its beginning, and the state of the run that it has now; None if that is unknown.
        self._initial = b""
        self._holds: bytes | None = b""
        # Set if a start has led to a process, or to a problem.
        self._settled = asyncio.Event()
        self._closing = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None

    @property
    def waited_s(self) -> float:
        """How long the process and the calling thread have waited for a processor until now, in seconds."""
        process = self._process.pid if self._process is not None else 0
        return waited_s((process, threading.get_native_id()))

    def start(self) -> None:
        """Start a process in the background, and again whenever it ends. A no-op if that was begun."""
        if self._task is None and not self._closing.is_set():
            self._task = asyncio.create_task(self._keep())

    async def step(self, generation: int, packet: SystemStatePacket, state: bytes) -> Answer:
        """Return the answer to the packet of a strategy with this state. Raises StrategyFailed."""
        data = encode(packet)
        process = await self._ready()
        if self._holds != state:
            await self._request(process, Kind.LOAD, generation, state or self._initial)
        self._holds = None
        answer = await self._request(process, Kind.STEP, generation, data)
        try:
            read_state(answer.end)
        except StateRefused as refused:
            # The process's own code never sends such a state.
            raise self._ended(process, str(refused)) from refused
        self._holds, self._failures = answer.end, 0
        return answer

    async def vote(self, state: bytes) -> None:
        """Return if the strategy agrees to go back to the state. Raises Refused, or StrategyFailed without a vote."""
        process = await self._ready()
        await self._request(process, Kind.VOTE, 0, state or self._initial)

    async def settled(self) -> None:
        """Start a process if none was started, and wait until one is ready or its start has failed."""
        self.start()
        await self._settled.wait()

    async def _ready(self) -> StrategyProcess:
        await self.settled()
        if self._process is None:
            raise StrategyFailed(self.problem)
        return self._process

    async def _request(self, process: StrategyProcess, kind: Kind, generation: int, body: bytes) -> Answer:
        try:
            return await process.request(kind, generation, body)
        except Refused:
            raise
        except StrategyFailed as failed:
            self._holds = None
            raise self._ended(process, str(failed)) from failed

    def _ended(self, process: StrategyProcess, why: str) -> StrategyFailed:
        """Kill a process that broke the protocol. Return the error to raise."""
        self._leave(process, why)
        process.kill()
        return StrategyFailed(why)

    def _leave(self, process: StrategyProcess, why: str) -> None:
        """Ask this process no more."""
        if self._process is process:
            self._process, self.problem = None, why

    def give_up(self, why: str) -> None:
        """Kill the process, after its stacks: a question to it was not answered, so no other may follow."""
        if (process := self._process) is not None:
            self._leave(process, why)
            self._killing = asyncio.create_task(process.kill_with_stacks())

    async def _keep(self) -> None:
        """Start one process after the other, until closed."""
        while not self._closing.is_set():
            await self._live()
            self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
            delay_s = 0.0
            if self._failures > 1:
                delay_s = min(self._limits.backoff_s * 2.0 ** (self._failures - 2), self._limits.backoff_max_s)
            if not self._closing.is_set():
                why = self.problem.rstrip(".")
                _log.warning("The strategy %s: %s. It is started again in %g s.", self._setup.shown, why, delay_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._closing.wait()

    async def _live(self) -> None:
        """Start a process, offer it for questions, and return after its end. `problem` says how it ended."""
        self._settled.clear()
        self.problem = "is still starting"
        try:
            self._living = process = StrategyProcess(self._setup)
        except (OSError, RuntimeError) as error:
            self.problem = f"could not be started: {error}"
            self._settled.set()
            return
        why = await self._serve(process)
        if not why:
            # It was ready: it ended by itself, or somebody has left it with a reason.
            why = process.how if self._process is process else self.problem
        self._process, self.problem = None, why
        self._settled.set()
        output = await process.end()
        self._living = None
        if stacks := stacks_in(output):
            _log.warning("The stacks of the strategy %s, before it was killed:\n%s", self._setup.shown, stacks)

    async def _serve(self, process: StrategyProcess) -> str:
        """Wait until the process is ready, and until it has ended. Return why it was never ready, or ""."""
        try:
            async with asyncio.timeout(self._limits.start_s):
                ready = await process.ready()
            read_state(ready.state)
        except TimeoutError:
            await process.kill_with_stacks()
            return f"was not ready within {self._limits.start_s:g} s"
        except (StrategyFailed, StateRefused) as failed:
            return str(failed)
        self._initial, self._holds, self.source_hash = ready.state, b"", ready.source_hash
        self._process, self.problem = process, ""
        self._settled.set()
        await process.gone()
        return ""

    async def close(self) -> None:
        """Kill the process, and wait until it is reaped, at most `kill_s`. No other one is started."""
        self._closing.set()
        if self._living is not None:
            self._living.kill()
        for task in filter(None, (self._task, self._killing)):
            await asyncio.wait({task}, timeout=self._limits.kill_s)
            task.cancel()
        self.problem = "was closed"
        self._settled.set()
