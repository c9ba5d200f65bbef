"""`tolaria metrics --serve`: one page for the runs of a node, those that hang or were killed included."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.control.fakes import Recorder
from tests.waiting import wait_for
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


def test_a_client_that_goes_away_leaves_no_traceback(monkeypatch, capfd):
    """Before it has read the page; a fault of ours is one line."""
    asked, gone = threading.Event(), threading.Event()

    def page() -> str:
        asked.set()
        assert gone.wait(120)
        return "x" * 50_000_000

    monkeypatch.setattr(serving, "node_page", page)
    with served() as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert asked.wait(120)
        monkeypatch.setattr(serving, "node_page", lambda: 1 / 0)
        monkeypatch.setattr(serving, "_PAGE_S", -1.0)
        gone.set()
        with pytest.raises(OSError, match=r"closed|reset|without"):
            got(f"{url}/metrics")
    said = capfd.readouterr().err

    assert "Traceback" not in said
    assert said.splitlines() == ["the page could not be made: division by zero"]


def test_clients_that_ask_at_once_share_a_page(monkeypatch):
    """Each gets a page that was begun after it asked."""
    begun, first, go, ticks = [], threading.Event(), threading.Event(), []

    def monotonic() -> float:
        ticks.append(1)
        return float(len(ticks))

    def page() -> str:
        begun.append(1)
        first.set()
        assert go.wait(120)
        return f"page {len(begun)}"

    monkeypatch.setattr(serving, "node_page", page)
    monkeypatch.setattr(serving, "_PAGE_S", 0.0)
    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=monotonic))
    node = serving.NodePage()
    early = threading.Thread(target=node.text)
    early.start()
    assert first.wait(120)
    later = []
    threads = [threading.Thread(target=lambda: later.append(node.text())) for _ in range(20)]
    for thread in threads:
        thread.start()
    # The first one has looked at the clock twice.
    wait_for(lambda: len(ticks) == 2 + len(threads))
    go.set()
    for thread in (early, *threads):
        thread.join()

    assert later == [b"page 2"] * 20
    assert len(begun) == 2
