"""What a scrape of the metrics takes, and how long it holds up the event loop and a thread that records meanwhile.

SCRAPES (200) is the number of scrapes of each kind. The run has 64 metrics, two ranks and two receivers.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import threading
import time

import pytest
from msgspec.structs import replace

from tests.bench.machine import machine
from tests.control.fakes import Recorder
from tolariad.control.replies import RanksStatus, RankStatus, ReceiverStatus
from tolariad.daemon.metrics import METRICS_NAME, EarlierTotals, MetricsServer
from tolariad.daemon.metrics_page import Facts
from tolariad.telemetry.totals import Totals

SCRAPES = int(os.environ.get("SCRAPES", "200"))
# Between two scrapes of a kind, in seconds; None: nobody scrapes.
KINDS = {"nobody": None, "each 10 ms": 0.01, "each 250 ms": 0.25}


async def lags(over: asyncio.Event) -> list[float]:
    """Return by how many ms each wake-up of the loop was late; it wakes each millisecond."""
    found = []
    while not over.is_set():
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        found.append((time.perf_counter() - begun - 0.001) * 1e3)
    return found


def thread_lags(over: threading.Event, found: list[float]) -> None:
    """Do the same in a thread, as the one that records."""
    while not over.is_set():
        begun = time.perf_counter()
        time.sleep(0.001)
        found.append((time.perf_counter() - begun - 0.001) * 1e3)


async def scraped(path: str) -> float:
    """Return how many ms a scrape took."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    page = await reader.read()
    writer.close()
    assert page.startswith(b"HTTP/1.1 200 ")
    return (time.perf_counter() - begun) * 1e3


def facts_of(recorder: Recorder) -> Facts:
    one = RankStatus(rank=0, pid=9, process="running", compute_s=0.25, wait_s=0.5, batch=None)
    ranks = RanksStatus(ranks=(one, replace(one, rank=1)), slowest=1, share=0.6, batch=None)
    receiver = ReceiverStatus(to="telemetry.bus", waiting=2, sent=30, dropped=4, thinned=5)
    metrics = {f"a metric of number {number}": number / 7 for number in range(64)}
    status = replace(recorder.status(), ranks=ranks, receivers=(receiver, receiver), step_metrics=metrics)
    known = {"totals": Totals().plus(Totals()), "memory": 5, "disk_free": 7, "disk_floor": 3}
    return Facts(status=status, rates=recorder.rates(), **known)


@pytest.mark.bench
async def test_the_price_of_a_scrape_is_printed(tmp_path):
    """The first scrapes of a page that is made, and those that get one from a fifth of a second before."""
    recorder = Recorder(tmp_path / "run" / "journal")
    recorder.begin_run(epochs=3)
    for _ in range(15):
        recorder.step()
    server = MetricsServer(tmp_path / "run", lambda: facts_of(recorder), EarlierTotals(tmp_path / "run" / "journal", 0))
    await server.begin(None)
    path = str(tmp_path / "run" / METRICS_NAME)
    print(f"\n{machine()}")
    print(f"{'ms':14}{'scrape p50':>11}{'p99':>8}{'loop late p50':>15}{'p99':>8}{'thread p50':>12}{'p99':>8}")
    for kind, pause_s in KINDS.items():
        over, thread_over, in_thread = asyncio.Event(), threading.Event(), list[float]()
        watching = asyncio.create_task(lags(over))
        thread = threading.Thread(target=thread_lags, args=(thread_over, in_thread))
        thread.start()
        took = []
        for _ in range(SCRAPES if pause_s != 0.25 else SCRAPES // 10):
            if pause_s is not None:
                took.append(await scraped(path))
            await asyncio.sleep(pause_s or 0.01)
        over.set()
        thread_over.set()
        late = await watching
        thread.join()
        figures = [f"{at(took, share):{wide}.2f}" for share, wide in ((0.5, 11), (0.99, 8))]
        figures += [f"{at(late, share):{wide}.2f}" for share, wide in ((0.5, 15), (0.99, 8))]
        figures += [f"{at(in_thread, share):{wide}.2f}" for share, wide in ((0.5, 12), (0.99, 8))]
        print(f"{kind:14}{''.join(figures)}")
    await server.close()
    recorder.journal.close()
    assert server._made_s > -math.inf


def at(values: list[float], share: float) -> float:
    """Return a quantile; NaN of nothing."""
    return statistics.quantiles(values, n=100)[round(share * 100) - 1] if len(values) > 1 else math.nan
