"""SIGHUP: the configuration is read again, from the file given at the start.

Promises: taken over whole, and only after it is recorded; a key that a running daemon cannot take over, or anything else
that is wrong, leaves everything as it was and is said. It must not know: what a value is used for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tolariad.control.peer import UnknownOperator
from tolariad.core.decision import Answer, Refusal
from tolariad.core.inputs import Reconfigured
from tolariad.core.settings import Settings
from tolariad.daemon import settings as settings_of
from tolariad.daemon.opening import OpenRun, write_configuration
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.daemon.settings import Resolved
from tolariad.kernel import Kernel
from tolariad.supervisor.notify import Notifier

_log: Final = logging.getLogger(__name__)


class Reloader:
    """Reads again on the loop; `check` raises UnknownOperator for settings that cannot be used, `take_over` uses them."""

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
        # What was accepted at the start was accepted for the start.
        self._request = replace(request, accept_config=False)
        self._run = run
        self._kernel = kernel
        self._notifier = notifier
        self._check = check
        self._take_over = take_over
        self._loop = asyncio.get_running_loop()

    def read_again(self) -> None:
        """Start a reload; the service manager hears when it is over."""
        self._notifier.reloading()
        try:
            self._ask()
        except (StartRefused, UnknownOperator, OSError) as error:
            self._end(f"the configuration is not read again: {error}", logging.ERROR)

    def _ask(self) -> None:
        state = self._kernel.durable
        resolved = settings_of.resolve(settings_of.load(self._request), state.run.rng_seed)
        change = settings_of.change(state.run.config, resolved, self._request)
        if change is None:
            return self._end("the configuration is read again: nothing has changed", logging.INFO)
        if self._kernel.failure is not None:
            return self._end(f"the configuration is not read again: {self._kernel.failure}", logging.ERROR)
        self._check(resolved.settings)

        def recorded(answer: Answer) -> None:
            self._loop.call_soon_threadsafe(self._go_on, answer, resolved, change.keys)

        return self._kernel.submit(Reconfigured(change=change), recorded)

    def _go_on(self, answer: Answer, resolved: Resolved, keys: tuple[str, ...]) -> None:
        if isinstance(answer, Refusal):
            return self._end(f"the configuration is not read again: {answer.why}", logging.ERROR)
        return self._use(resolved, keys)

    def _use(self, resolved: Resolved, keys: tuple[str, ...]) -> None:
        """It is durable. The copy in the run's folder is for readers and the next trainer; without it the run goes on."""
        self._take_over(resolved.settings)
        try:
            write_configuration(self._request, self._run.run_dir, resolved)
        except OSError as error:
            _log.error("the new configuration cannot be written into the run's folder: %s", error)
        self._end(f"the configuration is read again: {', '.join(keys)}", logging.INFO)

    def _end(self, what: str, level: int) -> None:
        _log.log(level, "%s", what)
        self._notifier.status(what)
        self._notifier.ready()
