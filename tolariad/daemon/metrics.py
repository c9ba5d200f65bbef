"""Serve a run's metrics to Prometheus: on a socket in the run's folder, and on a port if one is configured.

Promises: a page is made in a thread of its own, so the loop goes on meanwhile. Nothing here ends or delays the run: an
address that cannot be served is said, and the run goes on. Requests are bounded in size, time and number, and however
many there are, five pages a second are made at most: clients that ask at the same time get the same page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tolariad.control.tables import rate_table
from tolariad.core.calc.settings.values import read_address
from tolariad.core.state.run_state import RunState
from tolariad.daemon.gpu_figures import GpuReader
from tolariad.daemon.metrics_page import Facts, families
from tolariad.daemon.opening import OpenRun
from tolariad.daemon.port import RunPort
from tolariad.loop_files import in_thread
from tolariad.supervisor.process import child_environment
from tolariad.supervisor.procfs import resident_bytes
from tolariad.telemetry.exposition import CONTENT_TYPE, text
from tolariad.telemetry.totals import Adding, Totals

_log: Final = logging.getLogger(__name__)

METRICS_NAME: Final = "metrics.sock"
_MODE: Final = 0o660
_REQUEST_BYTES_MAX: Final = 16_384
_REQUEST_S: Final = 10.0
# A client that reads nothing, or says nothing, holds a descriptor of the recorder for as long.
_CLIENTS_MAX: Final = 64
_PAGE_S: Final = 0.2
_PACKAGE: Final = str(Path(__file__).parents[2])


class EarlierTotals:
    """The totals of the events before this start. They are added up when somebody first asks for them."""

    def __init__(self, journal: Path, until_seq: int) -> None:
        self._journal, self._until = journal, until_seq
        self._found = Totals() if until_seq == 0 else None
        self._task: asyncio.Task[None] | None = None

    def now(self) -> Totals | None:
        """Return the totals, or None as long as they are not known. Runs on the loop."""
        if self._found is None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._add_up())
        return self._found

    async def settled(self) -> None:
        """Wait until they are known, or cannot be."""
        self.now()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _add_up(self) -> None:
        path = os.pathsep.join(filter(None, (_PACKAGE, os.environ.get("PYTHONPATH"))))
        command = (sys.executable, "-P", "-m", "tolariad.cli.adding_up", str(self._journal), str(self._until))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(os.environ) | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            content, _ = await process.communicate()
            self._found = msgspec.msgpack.decode(content, type=Totals)
        except ValueError:
            _log.warning("Counters of the metrics are missing: the journal before this start could not be added up")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def close(self) -> None:
        """End the adding up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


class MetricsServer:
    """Belongs to the event loop."""

    def __init__(self, run_dir: Path, facts: Callable[[], Facts], earlier: EarlierTotals) -> None:
        """`facts` is called in a thread; its totals are replaced."""
        self._run_dir = run_dir
        self._facts = facts
        self.adding = Adding()
        self._earlier = earlier
        self._socket: asyncio.Server | None = None
        self._inode = 0
        self._port: asyncio.Server | None = None
        self._listen: str | None = None
        self._making = asyncio.Lock()
        self._page, self._made_s = "", -math.inf
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def _path(self) -> Path:
        return self._run_dir / METRICS_NAME

    async def begin(self, listen: str | None) -> None:
        """Serve the socket, and the port if there is one."""
        aside = self._run_dir / f".{METRICS_NAME}.{os.getpid()}"
        try:
            aside.unlink(missing_ok=True)
            self._socket = await asyncio.start_unix_server(self._serve, str(aside), start_serving=False)
            aside.chmod(_MODE)
            aside.replace(self._path)
            self._inode = self._path.lstat().st_ino
            await self._socket.start_serving()
        except OSError as error:
            # A path that is too long for a socket, or a file system without sockets.
            _log.info("There is no %s: %s", self._path, error)
        await self.listen(listen)

    async def listen(self, listen: str | None) -> None:
        """Serve this `host:port` in place of the one before; None: no port."""
        if listen == self._listen:
            return
        if self._port is not None:
            self._port.close()
            self._port = None
        self._listen = listen
        if listen is None:
            return
        try:
            host, port = read_address(listen)
            self._port = await asyncio.start_server(self._serve, host, port)
        except (OSError, ValueError) as error:
            _log.warning("Metrics cannot be served on %s (%s). The run goes on; %s has them", listen, error, self._path)

    @property
    def ports(self) -> list[int]:
        """The ports that are served."""
        return [one.getsockname()[1] for one in self._port.sockets] if self._port is not None else []

    async def close(self) -> None:
        """Serve nothing any more."""
        for server in (self._socket, self._port):
            if server is not None:
                server.close()
        for task in self._answers:
            task.cancel()
        await self._earlier.close()
        with contextlib.suppress(FileNotFoundError):
            if self._inode and self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    async def page(self) -> str:
        """Return the text of all metrics, as it was a fifth of a second ago at the latest."""
        async with self._making:
            now_s = time.monotonic()
            if now_s - self._made_s >= _PAGE_S:
                earlier = self._earlier.now()
                totals = earlier.plus(self.adding.now) if earlier is not None else None
                self._page, self._made_s = await in_thread(self._rendered, totals), now_s
            return self._page

    def _rendered(self, totals: Totals | None) -> str:
        facts = msgspec.structs.replace(self._facts(), totals=totals)
        return text(families(facts), {"run": facts.status.name})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._answers) >= _CLIENTS_MAX:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        if task is not None:
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        # `drain` waits for a client that does not read, and so does no buffer after the time is over.
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(_REQUEST_S):
                await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # a client that says nothing, reads nothing, or has gone
        except Exception:  # noqa: BLE001 - a defect of a page must not end the run
            _log.exception("The metrics could not be shown; the run is not affected")
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b"", b""]
        status, kind, body = "404 Not Found", "text/plain", "The metrics are at /metrics.\n"
        if len(head) > _REQUEST_BYTES_MAX:
            status, body = "431 Request Header Fields Too Large", ""
        elif method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", ""
        elif path.partition(b"?")[0] == b"/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE, await self.page()
        content = body.encode()
        lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(content)}", "Connection: close")
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if method == b"HEAD" else content))
        await writer.drain()


def metrics_of(run: OpenRun, port: RunPort, durable: Callable[[], RunState]) -> MetricsServer:
    """Return the metrics of a run that was opened: counters go on from those of its journal."""
    own, gpu = os.getpid(), GpuReader()

    def facts() -> Facts:
        state = durable()
        pids = {own, state.trainer.pid if state.trainer.alive else own}
        return Facts(
            status=port.view(),
            rates=rate_table(state),
            totals=None,
            memory=sum(map(resident_bytes, pids)),
            disk_free=state.disk.free,
            disk_floor=state.disk.floor,
            gpu=gpu.read(state.strategy.device) if state.trainer.alive else None,
        )

    return MetricsServer(run.run_dir, facts, EarlierTotals(run.journal.folder, run.state.seq))
