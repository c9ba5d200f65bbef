"""The default policy in a library run, asked by a thread of its own with an event loop.

Promises: a run that asks nobody starts and imports nothing. Training waits for this thread only while it is asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tolariad.core.exits import EXIT_CONFIG
from tolariad.core.inputs import StrategyReply, VoteGiven
from tolariad.core.settings.model import Settings
from tolariad.core.settings.strategies import DEFAULT, who_decides
from tolariad.core.state import RunState
from tolariad.core.strategy.words import AskStrategy, AskVote
from tolariad.daemon.asking import Asking, load
from tolariad.daemon.request import StartRefused

_CLOSE_S: Final = 5.0


def require_default(settings: Settings) -> None:
    """Raise StartRefused if the configuration names a strategy of the user's own: its process needs a daemon."""
    name = who_decides(settings, 1)
    if name not in ("", DEFAULT):
        why = f"strategy: {name} runs in a process of its own, which only `tolariad run` starts"
        raise StartRefused(EXIT_CONFIG, why, "to train in a program, set strategy to default or none")


def require_no_pruning(settings: Settings) -> None:
    """Raise StartRefused if pruning is enabled: an analysis builds the task in a process of its own."""
    if settings.prune.enabled:
        why = "prune.enabled: checkpoints are analysed in a process of their own, which only `tolariad run` starts"
        raise StartRefused(EXIT_CONFIG, why, "to train in a program, set prune.enabled to false")


class AskingThread:
    """Carries out the questions of one library run, from the first one to `close`."""

    def __init__(self, settings: Settings, submit: Callable[[StrategyReply | VoteGiven], None]) -> None:
        self._settings = settings
        self._submit = submit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: Asking | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tolaria-strategy", daemon=True)

    def prepare(self, slots: int) -> None:
        """Import what the first question needs, if a run with so many slots asks anybody: it takes a part of a second.

        Done at the first question, it would count against the answer's limit.
        """
        if who_decides(self._settings, slots):
            load()

    def obey(self, effect: AskStrategy | AskVote, state: RunState) -> None:
        """Begin what the effect asks for. The kernel's thread calls this."""
        if not self._thread.is_alive():
            self._thread.start()
            self._is_ready.wait(_CLOSE_S)
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
            self._asking = Asking(self._settings, (), self._submit)
            self._is_ready.set()
            self._loop.run_forever()
            runner.run(self._asking.close())
