"""A small web server for a test, on a port of its own, which ends with the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple


class Answer(NamedTuple):
    """What is answered to a request."""

    code: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


@contextmanager
def web_server(answer: Callable[[str, str, bytes], Answer]) -> Iterator[str]:
    """Answer requests by `answer(method, path, body)`, and give the server's URL."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = answer(self.command, self.path, body)
            self.send_response(given.code)
            for name, value in {"Content-Length": str(len(given.body)), **given.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(given.body)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_said: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
