"""Real servers for a test, on sockets and ports of their own, which end with it."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.outside.programs import outside
from tests.waiting import wait_for
from tests.web_server import Answer, web_server

_END_S = 30.0


@contextmanager
def _running(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "server.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(_END_S)


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[str]:
    """Run a Redis server that keeps nothing, and give its URL."""
    path = folder / "redis.sock"
    command = (outside("redis-server"), "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder))
    with _running(folder, *command, *options):
        wait_for(lambda: _listens(path), "the server's socket")
        yield f"unix://{path}"


def _listens(path: Path) -> bool:
    """Return whether somebody takes connections: a socket has its name before that."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes HOST:PORT each second, and give its URL."""
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [{"job_name": "run"}]}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML too
    address = f"127.0.0.1:{_free_port()}"
    command = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb")
    with _running(folder, outside("prometheus"), *command, f"--web.listen-address={address}"):
        yield f"http://{address}"


def queried(url: str, query: str) -> list[dict[str, Any]]:
    """Return what a Prometheus answers to an instant query; empty as long as it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?query={query}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []


@contextmanager
def web_pages(pages: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Serve these pages, each a type and a text by its path, and give HOST:PORT."""

    def page(_: str, path: str, __: bytes) -> Answer:
        kind, text = pages.get(path, ("text/plain", ""))
        return Answer(200 if path in pages else 404, text.encode(), {"Content-Type": kind})

    with web_server(page) as url:
        yield url.removeprefix("http://")


def rendered(url: str, folder: Path) -> str:
    """Return a page as Chromium has it after its scripts have run."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/chromium", "--dump-dom")
    command = (outside("chromium"), *options, "--virtual-time-budget=5000", url)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
