"""The strategy of a library run, asked by a thread of its own with an event loop.

Promises: a run that asks nobody starts and imports nothing. Training waits for this thread only while it is asked, and
before its first step until a strategy of the user's own can be asked. The process of such a strategy takes a second to
start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.strategies import DEFAULT, who_decides
from tolariad.core.state.run_state import RunState
from tolariad.daemon.asking import Asking, load
from tolariad.supervisor.process import ParentThread
from tolariad.supervisor.strategy_process import StrategyLimits

_CLOSE_S: Final = 5.0


class AskingThread:
    """Carries out the questions of one library run, until `close`."""

    def __init__(
        self,
        settings: Settings,
        submit: Callable[[m.StrategyReply | m.VoteGiven], None],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` gets the output of a strategy that runs in a process of its own; it must not block."""
        self._settings = settings
        self._submit = submit
        self._say = say
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: Asking | None = None
        self._is_ready = threading.Event()
        self._thread = ParentThread(target=self._run, name="tolaria-strategy", daemon=True)

    def prepare(self, slots: int) -> None:
        """Import and start what the first question needs, if a run with so many slots asks anybody.

        Done at the first question, it would count against the answer's limit.
        """
        name = who_decides(self._settings, slots)
        if name:
            load()
        if name not in ("", DEFAULT):
            self._start()
            if self._loop is not None and self._asking is not None:
                settled = asyncio.run_coroutine_threadsafe(self._asking.settled(), self._loop)
                # If it cannot be started, the answer to the first question says why.
                with suppress(TimeoutError):
                    settled.result(StrategyLimits().start_s)

    def _start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
            self._is_ready.wait(_CLOSE_S)

    def obey(self, effect: m.AskStrategy | m.AskVote, state: RunState) -> None:
        """Begin what the effect asks for. The kernel's thread calls this."""
        self._start()
        if self._loop is not None and self._asking is not None:
            with suppress(RuntimeError):  # the run is over, and the loop is closed
                self._loop.call_soon_threadsafe(self._asking.obey, effect, state)

    def close(self) -> None:
        """Drop what is in flight, and end the thread. Call it before the kernel stops."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the thread has failed
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        # Not the policy's loop: the program may have set a policy of its own.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            self._asking = Asking(self._settings, (self._pass_on,), self._submit)
            self._is_ready.set()
            self._loop.run_forever()
            runner.run(self._asking.close())

    def _pass_on(self, lines: bytes) -> None:
        self._say(lines.decode("utf-8", "backslashreplace").rstrip("\n"))
