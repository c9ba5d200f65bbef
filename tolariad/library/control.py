"""The control socket of a library run, served by a thread of its own.

The server is the daemon's; its event loop belongs to the thread, so a loop of the program does not matter. Promises:
training waits for the socket only until it is created, and never fails because of it. If there is no socket, that is
said once. Its files are removed when the run ends, also by an exception.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import tolariad
from tolariad.channel import Page
from tolariad.control.peer import UnknownOperator, operators
from tolariad.control.place import Bound, bind, publish, remove_made, withdraw
from tolariad.control.server import ControlServer
from tolariad.daemon.opening import OpenRun
from tolariad.daemon.port import Publications, RunPort
from tolariad.kernel import Kernel, Published
from tolariad.telemetry.histograms import BudgetHistograms

# The server waits at most twice for its clients, a second each.
_CLOSE_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class ControlThread:
    """Serves the control socket of one run from `start` to `close`. `control.socket: false`: it does nothing."""

    def __init__(
        self, run: OpenRun, kernel: Kernel, page: Callable[[], Page | None], say: Callable[[str], None]
    ) -> None:
        """`page`: that of the living trainer. `say` is called once if there is no socket. Both by any thread."""
        self._run, self._kernel, self._page, self._say = run, kernel, page, say
        self._is_wanted = run.resolved.settings.control.socket
        self._histograms = BudgetHistograms(run.state.overruns)
        self._publications: Publications | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serves_or_failed = threading.Event()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._serve_until_closed, name="tolaria-control", daemon=True)

    def start(self) -> None:
        """Create the socket and serve it, once the start of the run is submitted: no order may be recorded before."""
        if self._is_wanted:
            self._thread.start()
            self._serves_or_failed.wait()

    def publish(self, published: Published) -> None:
        """The kernel's thread calls this after every durable turn. Never raises, never waits."""
        if not self._is_wanted:
            return
        for _, event in published.events:
            self._histograms.add(event)
        publications = self._publications
        if publications is not None:
            publications.publish(published)

    def close(self) -> None:
        """Give clients their last replies, remove the files, end the thread. Call it before the kernel stops.

        A thread that hangs is not waited for: it cannot keep the process alive.
        """
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the thread has failed, and its loop is closed
                loop.call_soon_threadsafe(self._closed.set)
            self._thread.join(_CLOSE_S)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _serve_until_closed(self) -> None:
        try:
            # Not the policy's loop: the program may have set a policy of its own.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001 - the run goes on without a socket
            if not isinstance(error, OSError | UnknownOperator):
                _log.exception("The control socket failed")
            self._say(
                f"the run has no control socket ({error}), so `tolaria` cannot pause or stop it. The training is not "
                "affected. `control.socket: false` switches the socket off"
            )
        finally:
            self._serves_or_failed.set()

    async def _serve(self) -> None:
        bound = bind(self._run.run_dir)
        link = None
        try:
            server = self._server(bound)
            await server.start()
            link = publish(self._run.run_dir, self._run.run_dir.name)
            self._serves_or_failed.set()
            await self._closed.wait()
            await server.close()
        finally:
            withdraw(link, self._run.run_dir)
            remove_made(bound)
            bound.listener.close()

    def _server(self, bound: Bound) -> ControlServer:
        run = self._run
        self._publications = Publications(asyncio.get_running_loop(), lambda _: None)
        port = RunPort(
            *(run.run_dir, run.journal, self._kernel, self._page, self._publications),
            histograms=self._histograms,
            served_by="library",
        )
        named, group = run.resolved.settings.control.operators, bound.path.stat().st_gid
        may_change = operators(named, owner_uid=os.getuid(), socket_gid=group)
        return ControlServer(port, bound, may_change, version=tolariad.__version__)
