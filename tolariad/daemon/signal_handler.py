"""What a signal to the daemon leads to, while it opens a run, serves it and ends.

| | SIGTERM, ^C | SIGUSR1, SIGUSR2 |
|---|---|---|
| until the start of the run is recorded | wait (before `listen`: see tolariad/signals.py) | wait |
| while the run is live | stop with a checkpoint; the second one stops at once | as the setting `signals` says |
| when the exit code is decided | wait, so that they cannot change it | the same |

A stop by SIGUSR1 or SIGUSR2 does not count as a first SIGTERM. So the warning of a job scheduler and the SIGTERM that
follows it are one stop, with a checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable
from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.core.calc.settings.model import SignalSettings
from tolariad.core.decision import Accepted, Answer
from tolariad.kernel import Kernel
from tolariad.signals import DAEMONS

_log: Final = logging.getLogger(__name__)

# How long an immediate stop may take. After that the process exits even if the kernel hangs in a write.
_FORCE_S: Final = 10.0
# Until the stop is recorded, further signals within this time are the same one.
_TWIN_S: Final = 1.0
_SENDER: Final = m.Actor(program="signal")


class SignalHandler:
    """Takes the signals of one daemon, on its loop. `force` ends the daemon although its run has not ended."""

    def __init__(self, words: SignalSettings, kernel: Kernel, force: Callable[[m.ExitDaemon], None]) -> None:
        self._words = {signal.SIGUSR1: words.USR1, signal.SIGUSR2: words.USR2}
        self._kernel = kernel
        self._force = force
        self._loop = asyncio.get_running_loop()
        self._waiting: list[signal.Signals] | None = []
        self._stops = 0
        self._first_s = 0.0
        self.is_stop_ordered = False

    @property
    def is_hurried(self) -> bool:
        """Return whether the run was told to stop at once."""
        return self._stops > 1

    def listen(self, taken: Iterable[signal.Signals]) -> None:
        """Take these signals from now on, also those that waited. A SIGHUP has no effect."""
        for one in taken:
            self._loop.add_signal_handler(one, self._take, one)
        # A closed terminal sends SIGHUP; it must not stop the run.
        self._loop.add_signal_handler(signal.SIGHUP, _log.info, "SIGHUP is ignored: the run is still starting")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DAEMONS)

    def begin(self) -> None:
        """Act on signals from now on: the start of the run is recorded before anything that a signal leads to."""
        came, self._waiting = self._waiting or [], None
        for which in came:
            self._act(which)

    def _take(self, which: signal.Signals) -> None:
        if self._waiting is None:
            self._act(which)
        else:
            self._waiting.append(which)

    def _act(self, which: signal.Signals) -> None:
        word = self._words.get(which)
        if word == "checkpoint":
            self._save(which)
        elif word is None and self._stops:
            self._repeat(which)
        else:
            _log.info("%s: the run stops at the next boundary, after a last checkpoint", which.name)
            if word is None:
                self._stops, self._first_s = 1, self._loop.time()
            self.is_stop_ordered = True
            self._kernel.submit(m.SignalReceived(count=1, name=which.name))

    def _repeat(self, which: signal.Signals) -> None:
        """Stop at once, unless the signal is a twin of the first: `timeout` signals its child, and then the group too.

        Nobody can have meant a second signal before there was a stop to hasten. Without a record in time, the disk
        hangs.
        """
        if self._kernel.durable.run.stop is None and self._loop.time() - self._first_s < _TWIN_S:
            _log.info("%s came twice before the stop was recorded: it counts once", which.name)
        else:
            self.stop_at_once(which.name)

    def _save(self, which: signal.Signals) -> None:
        name = which.name

        def answered(answer: Answer) -> None:
            if isinstance(answer, Accepted):
                _log.info("%s: a checkpoint is taken at the next boundary", name)
            else:
                _log.warning("%s: no checkpoint is taken: %s", name, answer.why)

        self._kernel.submit(m.CommandReceived(command=m.Checkpoint(reason=name), actor=_SENDER), answered)

    def stop_at_once(self, why: str) -> None:
        """Stop without a last checkpoint. If the run has not ended after `_FORCE_S`, the daemon exits."""
        _log.warning("%s: the run stops at once, without a last checkpoint", why)
        self._stops = max(self._stops, 1) + 1
        self.is_stop_ordered = True
        self._kernel.submit(m.SignalReceived(count=self._stops, name=why))
        forced = m.ExitDaemon(code=EXIT_IO, why="the run did not stop in time, so the daemon exits without it")
        self._loop.call_later(_FORCE_S, self._force, forced)


def block_for_good() -> None:
    """Block the signals for the rest of the process, before the loop takes its handlers away: the code is decided."""
    signal.pthread_sigmask(signal.SIG_BLOCK, DAEMONS)
