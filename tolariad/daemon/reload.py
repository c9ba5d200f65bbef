"""Reload on SIGHUP: read the configuration again, from the file given at the start.

Promises: a reload takes effect completely, and only after it is recorded. If a key cannot change in a running daemon,
or the configuration is wrong in any way, nothing changes, and the log and the service manager's status say why.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from msgspec.structs import replace

from tolariad.control.peer import UnknownOperator
from tolariad.core.decision import Answer, Refusal
from tolariad.core.inputs import Reconfigured
from tolariad.core.settings.model import Settings
from tolariad.daemon import settings as settings_of
from tolariad.daemon.opening import OpenRun, write_configuration
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.daemon.settings import Resolved
from tolariad.kernel import Kernel
from tolariad.supervisor.notify import Notifier

_log: Final = logging.getLogger(__name__)
R = TypeVar("R")


class Reloader:
    """Reads the configuration in a thread and applies it on the loop.

    `check` is called in that thread and raises UnknownOperator for invalid settings. `take_over` is called on the loop.
    """

    def __init__(
        self,
        request: RunRequest,
        run: OpenRun,
        kernel: Kernel,
        notifier: Notifier,
        *,
        check: Callable[[Settings], object],
        take_over: Callable[[Settings], None],
    ) -> None:
        # --accept-config was given for the start, not for later reloads.
        self._request = replace(request, accept_config=False)
        self._run = run
        self._kernel = kernel
        self._notifier = notifier
        self._check = check
        self._take_over = take_over
        self._loop = asyncio.get_running_loop()
        self._is_busy = self._is_wanted = False

    def read_again(self) -> None:
        """Start a reload. If one is in progress, another one follows it. READY=1 tells the manager of each end."""
        self._is_wanted = True
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_wanted, self._is_busy = False, True
        self._notifier.reloading()
        self._in_thread(self._read, self._ask)

    def _in_thread(self, work: Callable[[], R], then: Callable[[R], None]) -> None:
        """Run `work` in a thread: the file's disk may hang, and parsing a long file takes a second."""

        def run() -> None:
            result = work()
            with suppress(RuntimeError):  # the daemon has ended meanwhile
                self._loop.call_soon_threadsafe(then, result)

        threading.Thread(target=run, name="configuration", daemon=True).start()

    def _read(self) -> Resolved | str:
        """Return the resolved settings, or the reason why they cannot be used. Runs in the thread."""
        file = self._request.config
        try:
            if file is not None and file.exists() and not file.is_file():
                return f"{file} is not a regular file, so reading it could block"
            settings = settings_of.load(self._request)
            self._check(settings)
            return settings_of.resolve(settings, self._kernel.durable.run.rng_seed)
        except (StartRefused, UnknownOperator, OSError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the manager must learn of the end of every reload
            _log.exception("The reload failed")
            return f"{error!r}; this is a defect, please report it with the log"

    def _ask(self, read: Resolved | str) -> None:
        if isinstance(read, str):
            return self._end(f"the configuration was not reloaded: {read}", logging.ERROR)
        try:
            change = settings_of.change(self._kernel.durable.run.config, read, self._request)
        except StartRefused as error:
            return self._end(f"the configuration was not reloaded: {error}", logging.ERROR)
        if change is None:
            return self._end("the configuration was reloaded: nothing has changed", logging.INFO)
        if self._kernel.failure is not None:
            return self._end(f"the configuration was not reloaded: {self._kernel.failure}", logging.ERROR)

        def recorded(answer: Answer) -> None:
            self._loop.call_soon_threadsafe(self._go_on, answer, read, change.keys)

        return self._kernel.submit(Reconfigured(change=change), recorded)

    def _go_on(self, answer: Answer, resolved: Resolved, keys: tuple[str, ...]) -> None:
        if isinstance(answer, Refusal):
            return self._end(f"the configuration was not reloaded: {answer.why}", logging.ERROR)
        return self._use(resolved, keys)

    def _use(self, resolved: Resolved, keys: tuple[str, ...]) -> None:
        """Apply the recorded settings, then write the copy in the run's folder, for readers and the next trainer."""
        self._take_over(resolved.settings)

        def write() -> None:
            try:
                write_configuration(self._request, self._run.run_dir, resolved)
            except OSError as error:
                _log.error(
                    "The reload is in force, but its copy in the run's folder was not written: %s",
                    error,
                )

        said = f"the configuration was reloaded: {', '.join(keys)}"
        self._in_thread(write, lambda _: self._end(said, logging.INFO))

    def _end(self, what: str, level: int) -> None:
        _log.log(level, "%s", what)
        self._notifier.status(what)
        self._notifier.ready()
        self._is_busy = False
        if self._is_wanted:
            self._begin()
