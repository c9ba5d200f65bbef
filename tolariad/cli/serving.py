"""`tolaria metrics --serve`: one page of metrics for all runs of a node.

Promises: a run that does not answer delays the page for a stated time, and has no more than its mark on it. Nothing of
a run is changed: only its `metrics.sock` is read. One page is made at a time; those who ask meanwhile get the next one.
"""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, Final

from tolariad.cli import output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.core.calc.settings.values import read_address
from tolariad.telemetry.exposition import CONTENT_TYPE
from tolariad.telemetry.merging import RunPage, merged

_SOCKET: Final = "metrics.sock"
_RUN_S: Final = 3.0
_PAGE_BYTES_MAX: Final = 4 << 20
_AT_ONCE: Final = 16
_CLIENT_S: Final = 10.0
_PAGE_S: Final = 0.2


def page_of(folder: Path) -> RunPage:
    """Return what the run in this folder answers."""
    text = None
    with suppress(OSError):  # it has ended, was killed, or hangs
        head, _, body = _asked(folder / _SOCKET).partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 200 "):
            text = body.decode("utf-8", "replace")
    return RunPage(str(folder), folder.name, text)


def _asked(path: Path) -> bytes:
    """Return the answer of a run's socket. Raises OSError, also if it takes too long or has no end."""
    until, pieces, size = time.monotonic() + _RUN_S, [], 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_RUN_S)
        sock.connect(str(path))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: run\r\nConnection: close\r\n\r\n")
        while piece := sock.recv(1 << 16):
            pieces.append(piece)
            size += len(piece)
            left_s = until - time.monotonic()
            if size > _PAGE_BYTES_MAX or left_s <= 0:
                raise TimeoutError("the page has no end")
            sock.settimeout(left_s)
    return b"".join(pieces)


class NodePage:
    """The page of all runs. Any number of threads may ask for it: pages are made one after the other."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._text, self._begun_s = b"", -math.inf

    def text(self) -> bytes:
        """Return a page that was begun after this call, or less than a fifth of a second before it."""
        asked_s = time.monotonic()
        with self._making:
            if self._begun_s < asked_s - _PAGE_S:
                self._begun_s = time.monotonic()
                self._text = node_page().encode()
            return self._text


def node_page() -> str:
    """Return the page of all runs that have a socket for metrics, in all known places."""
    folders = [target.folder.absolute() for target in runs.candidates() if target.folder is not None]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return merged(pool.map(page_of, [folder for folder in folders if _has_socket(folder)]))


def _has_socket(folder: Path) -> bool:
    try:
        return (folder / _SOCKET).is_socket()
    except OSError:
        return False


class _Answering(BaseHTTPRequestHandler):
    timeout = _CLIENT_S
    page: ClassVar[NodePage]

    def do_GET(self) -> None:
        """Answer with the page."""
        is_there = self.path.partition("?")[0] == "/metrics"
        body = self.page.text() if is_there else b"The metrics are at /metrics.\n"
        self.send_response(200 if is_there else 404)
        self.send_header("Content-Type", CONTENT_TYPE if is_there else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Say nothing: a scrape comes every few seconds."""


def server_at(address: str) -> ThreadingHTTPServer:
    """Return a server that listens at `host:port`. Raises CommandError."""
    try:
        host, port = read_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class Answering(_Answering):
            page = NodePage()

        class Server(ThreadingHTTPServer):
            address_family = family
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Say what went wrong, unless the client has gone: no answer reaches it."""
                error = sys.exception()
                if not isinstance(error, OSError):
                    output.note(f"the page could not be made: {error}")

        return Server((host, port), Answering)
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error), name="Usage") from error
    except OSError as error:
        what = f"{address} cannot be served: {error.strerror or error}"
        raise CommandError(Exit.NO, what, hint="give another port", name=type(error).__name__) from error


def serve(address: str) -> None:
    """Serve until ^C."""
    with server_at(address) as server:
        host, port = server.server_address[:2]
        output.note(f"the metrics of all runs of this node are on http://{host!s}:{port}/metrics")
        server.serve_forever()
