"""The control socket of a library run, served by a thread of its own.

The server is the daemon's; its event loop belongs to the thread, so a loop of the program does not matter. Promises:
the run never waits for the socket and never fails because of it. If there is no socket, that is said once. Forked
children let go of it. At the end its files are removed, also after an exception.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import tolariad
from journal.fork import abandon_after_fork
from tolariad.channel import Page
from tolariad.control.peer import UnknownOperator, operators
from tolariad.control.place import bind, publish, remove_made, withdraw
from tolariad.control.server import ControlServer
from tolariad.daemon.opening import OpenRun
from tolariad.daemon.port import Publications, RunPort
from tolariad.kernel import Kernel, Published
from tolariad.telemetry.histograms import BudgetHistograms

# The server waits at most twice for its clients, a second each.
_CLOSE_S: Final = 5.0
_OPEN: Final = Path("/proc/self/fd")
_log: Final = logging.getLogger(__name__)


class ControlThread:
    """Serves the control socket of one run: `start` it, `close` it before the kernel stops."""

    def __init__(
        self, run: OpenRun, kernel: Kernel, page: Callable[[], Page | None], say: Callable[[str], None]
    ) -> None:
        """`page`: that of the living trainer. `say` is called once if there is no socket. Both by any thread."""
        self._run, self._kernel, self._page, self._say = run, kernel, page, say
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._publications: Publications | None = None
        self._histograms = BudgetHistograms(run.state.overruns)
        # The name that the listener, and every connection that it accepts, was bound to.
        self._address = ""

    def start(self) -> None:
        """Start the thread, which creates the socket. Never raises for want of a socket."""
        try:
            # Not the policy's loop: the program may have set one of its own.
            self._loop = asyncio.SelectorEventLoop()
            thread = threading.Thread(target=self._serve_until_closed, name="tolaria-control", daemon=True)
            thread.start()
            self._thread = thread
        except (OSError, RuntimeError) as error:
            self._say_none(error)

    def publish(self, published: Published) -> None:
        """The kernel's thread calls this after every durable turn. Never raises, never waits."""
        for _, event in published.events:
            self._histograms.add(event)
        publications = self._publications
        if publications is not None:
            with suppress(RuntimeError):  # the loop has ended
                publications.publish(published)

    def close(self) -> None:
        """Give clients their last replies, remove the files, end the thread. A thread that hangs is left behind."""
        loop, thread = self._loop, self._thread
        if loop is None:
            return
        if thread is None:
            loop.close()
            return
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._ended.set)
        thread.join(_CLOSE_S)

    def _say_none(self, error: Exception) -> None:
        self._say(
            f"the run has no control socket ({error}), so `tolaria` cannot pause or stop it. The training is not "
            "affected. `control.socket: false` switches the socket off"
        )

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _serve_until_closed(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve())
        except (OSError, UnknownOperator) as error:
            self._say_none(error)
        except Exception as error:  # noqa: BLE001 - the run must go on
            _log.exception("The control thread failed")
            self._say_none(error)
        finally:
            self._publications = None

    async def _serve(self) -> None:
        run = self._run
        publications = Publications(asyncio.get_running_loop(), lambda _: None)
        port = RunPort(
            *(run.run_dir, run.journal, self._kernel, self._page, publications), histograms=self._histograms
        )
        bound = bind(run.run_dir)
        self._address = bound.listener.getsockname()
        abandon_after_fork(self)
        link = None
        try:
            # The group of the socket's file is that of this process, or of a folder that passes its own on.
            named, gid = run.resolved.settings.control.operators, bound.path.stat().st_gid
            may_change = operators(named, owner_uid=os.getuid(), socket_gid=gid)
            server = ControlServer(port, bound, may_change, version=tolariad.__version__)
            await server.start()
            self._publications = publications
            link = publish(run.run_dir, run.run_dir.name)
            await self._ended.wait()
            await server.close()
        finally:
            withdraw(link, run.run_dir)
            bound.listener.close()
            remove_made(bound)

    # -- in a forked child ---------------------------------------------------------------------------------------------

    def abandon_in_child(self) -> None:
        """Let go of the listener and of every connection: a child that outlives its parent must not hold them."""
        self._loop = None
        for entry in tuple(_OPEN.iterdir()):
            with suppress(OSError):  # no socket, or the descriptor of the listing itself
                _let_go(int(entry.name), self._address)


def _let_go(descriptor: int, address: str) -> None:
    """Replace the descriptor of a socket with this local address by one of /dev/null. Raises OSError if it is none.

    A closed descriptor could be given out again, and then be closed by the object that believes to own it.
    """
    found = socket.socket(fileno=descriptor)  # raises if it is no socket, without a change
    try:
        is_ours = found.family == socket.AF_UNIX and found.getsockname() == address
    finally:
        found.detach()
    if is_ours:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, descriptor, inheritable=False)
        os.close(null)
