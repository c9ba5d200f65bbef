"""Reload on SIGHUP or `tolaria reload`: read the configuration again, from the file given at the start.

Promises: a reload takes effect completely, and only after it is recorded. If a key cannot change in a running daemon,
or the configuration is wrong, nothing changes. The log and the service manager's status say why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from tolariad import loop_files
from tolariad.control.methods import ReloadRefused
from tolariad.control.peer import UnknownOperator
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_IO
from tolariad.core.calc.settings.model import Settings
from tolariad.core.decision import Answer
from tolariad.daemon import changes
from tolariad.daemon import settings as settings_of
from tolariad.daemon.opening import OpenRun, write_configuration
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.daemon.settings import Resolved
from tolariad.kernel import Kernel
from tolariad.supervisor.notify import Notifier

_log: Final = logging.getLogger(__name__)


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
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._one_at_a_time = asyncio.Lock()

    def read_again(self) -> None:
        """Start a reload. If one is in progress, another one follows it. READY=1 tells the manager of each end."""
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._reload_while_wanted(), name="reload")

    async def _reload_while_wanted(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            with suppress(ReloadRefused):  # it is logged
                await self.reload()

    async def reload(self) -> tuple[str, ...]:
        """Reload now, or after the one in progress. Return the keys that have changed. Raises ReloadRefused.

        A client that is gone does not end a reload: the manager must learn of its end.
        """
        return await asyncio.shield(asyncio.ensure_future(self._reload_and_tell()))

    async def _reload_and_tell(self) -> tuple[str, ...]:
        async with self._one_at_a_time:
            self._notifier.reloading()
            try:
                keys = await self._reload()
            except (StartRefused, UnknownOperator, OSError) as error:
                raise self._refused(str(error)) from error
            except Exception as error:
                _log.exception("The reload failed")
                raise self._refused(f"{error!r}; this is a defect, please report it with the log") from error
            self._tell(logging.INFO, f"the configuration was reloaded: {', '.join(keys) or 'nothing has changed'}")
            return keys

    def _refused(self, why: str) -> ReloadRefused:
        what = f"the configuration was not reloaded: {why}"
        self._tell(logging.ERROR, what)
        return ReloadRefused(what)

    def _tell(self, level: int, what: str) -> None:
        _log.log(level, "%s", what)
        self._notifier.status(what)
        self._notifier.ready()

    async def _reload(self) -> tuple[str, ...]:
        """Reload once, and return the keys that have changed. Raises if nothing was reloaded."""
        # In a thread: the file's disk may hang, and parsing a long file takes a second.
        resolved = await loop_files.in_thread(self._read)
        change = changes.at_reload(self._kernel.durable.run.config, resolved, self._request)
        if change is None:
            return ()
        if self._kernel.failure is not None:
            raise StartRefused(EXIT_IO, self._kernel.failure)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def recorded(answer: Answer) -> None:
            loop.call_soon_threadsafe(answered.set_result, answer)

        self._kernel.submit(m.Reconfigured(change=change), recorded)
        answer = await answered
        if isinstance(answer, m.Refusal):
            raise StartRefused(EXIT_IO, answer.why)
        # Recorded: apply it, then write the copy in the run's folder, for readers and the next trainer.
        self._take_over(resolved.settings)
        try:
            await loop_files.in_thread(write_configuration, self._request, self._run.run_dir, resolved)
        except OSError as error:
            _log.error("The reload is in force, but its copy in the run's folder was not written: %s", error)
        return change.keys

    def _read(self) -> Resolved:
        file = self._request.config
        if file is not None and file.exists() and not file.is_file():
            raise StartRefused(EXIT_CONFIG, f"{file} is not a regular file, so reading it could block")
        settings = settings_of.load(self._request)
        self._check(settings)
        run = self._kernel.durable.run
        return settings_of.resolve(settings, run.rng_seed, run.config)
