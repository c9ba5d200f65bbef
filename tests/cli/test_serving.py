"""`tolaria metrics --serve`: one page for the runs of a node, those that hang or were killed included."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests.control.fakes import Recorder
from tolariad.cli import serving
from tolariad.daemon.metrics import EarlierTotals, MetricsServer
from tolariad.daemon.metrics_page import Facts


@contextmanager
def served(address: str = "127.0.0.1:0"):
    """Serve as the command does, and give the URL."""
    with serving.server_at(address) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


async def test_the_page_has_every_run(tmp_path, monkeypatch):
    """One run answers, one was killed and left its socket, one hangs, one has none."""
    monkeypatch.setattr(serving, "_RUN_S", 1.0)
    folders = [tmp_path / "work" / "runs" / name for name in ("lives", "killed", "hangs", "none")]
    for folder in folders[1:]:
        (folder / "journal").mkdir(parents=True)
    recorder = Recorder(folders[0] / "journal")
    recorder.begin_run(epochs=3)
    recorder.step()
    facts = Facts(status=recorder.status(), rates=recorder.rates(), totals=None, memory=5, disk_free=7, disk_floor=3)
    server = MetricsServer(folders[0], lambda: facts, EarlierTotals(folders[0] / "journal", 0))
    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as hangs:
        killed.bind(str(folders[1] / "metrics.sock"))
        hangs.bind(str(folders[2] / "metrics.sock"))
        hangs.listen()
        await server.begin(None)
        try:
            with served() as url:
                page = await asyncio.to_thread(got, f"{url}/metrics")
        finally:
            await server.close()
            recorder.journal.close()

    up = {line for line in page.splitlines() if line.startswith("tolaria_run_up{")}
    assert up == {
        f'tolaria_run_up{{dir="{folders[0]}",run="lives"}} 1',
        f'tolaria_run_up{{dir="{folders[1]}",run="killed"}} 0',
        f'tolaria_run_up{{dir="{folders[2]}",run="hangs"}} 0',
    }
    assert f'tolaria_journal_events{{dir="{folders[0]}",run=' in page


def test_another_page_is_not_there():
    """It says where the metrics are."""
    with served() as url, pytest.raises(urllib.error.HTTPError) as raised:
        got(url)
    assert raised.value.code == 404


def test_an_address_that_cannot_be_served_is_said(tolaria):
    """No address, one that is taken, and arguments that do not go with it."""
    assert tolaria("metrics", "--serve", "localhost").code == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = tolaria("metrics", "--serve", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (said.code, "cannot be served" in said.err) == (1, True)
    assert tolaria("metrics", "mine", "--serve", "127.0.0.1:0").code == 2
