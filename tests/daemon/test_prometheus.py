"""A run's metrics: right over restarts, on a socket and a port, and never in the way of the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import socket
import sys
import threading
import time

import pytest
from msgspec.structs import replace

from tests.control.fakes import Recorder
from tests.core.simulate import World, until
from tests.fake_nvml import GIB, NVMLError, nvml
from tests.followers.recording import went_back, write_journal
from tests.waiting import becomes_true
from tolariad.control.replies import RanksStatus, RankStatus, ReceiverStatus
from tolariad.core import messages as m
from tolariad.core.calc.settings.reading import read_settings
from tolariad.core.calc.settings.rules import check
from tolariad.daemon.gpu_figures import GpuReader
from tolariad.daemon.metrics import METRICS_NAME, EarlierTotals, MetricsServer
from tolariad.daemon.metrics_page import Facts, families
from tolariad.telemetry.exposition import Family, Sample, histogram, text
from tolariad.telemetry.totals import Adding, Totals

# Of source 003.
TEN = {
    "tolaria_epochs_completed_total",
    "tolaria_rollbacks_initiated_total",
    "tolaria_rollbacks_succeeded_total",
    "tolaria_lr_violations_total",
    "tolaria_current_loss",
    "tolaria_current_accuracy",
    "tolaria_memory_usage_gb",
    "tolaria_epoch_duration_seconds",
    "tolaria_checkpoint_duration_seconds",
    "tolaria_rollback_duration_ms",
}


def added(events) -> Totals:
    adding = Adding()
    for event in events:
        adding.add(event)
    return adding.now


@pytest.fixture
def facts(tmp_path):
    """The facts of a run of fifteen steps."""
    recorder = Recorder(tmp_path / "run" / "journal")
    recorder.begin_run(epochs=3)
    for _ in range(15):
        recorder.step()
    yield Facts(status=recorder.status(), rates=recorder.rates(), totals=Totals(), memory=5, disk_free=7, disk_floor=3)
    recorder.journal.close()


def names_in(page: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))


def test_the_ten_names_of_the_source_are_there_and_twins_of_two(facts):
    """Each with its kind; a number that is not known has no line."""
    page = text(families(replace(facts, totals=Totals().plus(Totals()))), {"run": "r"})
    found = names_in(page)

    assert found.keys() >= TEN | {"tolaria_memory_usage_bytes", "tolaria_rollback_duration_seconds"}
    assert all((kind == "counter") == name.endswith("_total") for name, kind in found.items())
    assert 'tolaria_current_loss{run="r"} 0.5' in page
    assert 'tolaria_phase{run="r",phase="running"} 1' in page
    assert not names_in(text(families(replace(facts, totals=None)), {})).keys() & {
        "tolaria_epochs_completed_total",
        "tolaria_epoch_duration_seconds",
    }


def test_each_rank_has_its_times_and_whether_its_process_runs(facts):
    """By the label `rank`; a run of one process has none of them."""
    one = {"pid": 9, "batch": None}
    ranks = RanksStatus(
        ranks=(
            RankStatus(rank=0, process="running", compute_s=0.25, wait_s=0.5, **one),
            RankStatus(rank=1, process="stopped", compute_s=0.75, wait_s=None, **one),
        ),
        slowest=1,
        share=0.6,
        batch=None,
    )
    facts = replace(facts, totals=None)
    page = text(families(replace(facts, status=replace(facts.status, ranks=ranks))), {})

    assert "tolaria_rank" not in text(families(facts), {})
    assert [line for line in page.splitlines() if line.startswith("tolaria_rank")] == [
        'tolaria_rank_compute_seconds{rank="0"} 0.25',
        'tolaria_rank_compute_seconds{rank="1"} 0.75',
        'tolaria_rank_wait_seconds{rank="0"} 0.5',
        'tolaria_rank_alive{rank="0"} 1',
        'tolaria_rank_alive{rank="1"} 0',
    ]


def test_what_becomes_of_telemetry_is_counted_for_each_receiver(facts):
    """Sent, dropped and thinned messages are one counter with two labels; those that wait are a gauge."""
    bus = ReceiverStatus(to="telemetry.bus", waiting=2, sent=30, dropped=4, thinned=5, why='it is "full"')
    mail = ReceiverStatus(to="notify.command", waiting=0, sent=1, dropped=0, thinned=0)
    facts = replace(facts, totals=None)
    page = text(families(replace(facts, status=replace(facts.status, receivers=(bus, mail)))), {})

    assert "tolaria_telemetry" not in text(families(facts), {})
    assert names_in(page)["tolaria_telemetry_messages_total"] == "counter"
    assert [line for line in page.splitlines() if line.startswith("tolaria_telemetry")] == [
        'tolaria_telemetry_messages_total{receiver="telemetry.bus",outcome="sent"} 30',
        'tolaria_telemetry_messages_total{receiver="telemetry.bus",outcome="dropped"} 4',
        'tolaria_telemetry_messages_total{receiver="telemetry.bus",outcome="thinned"} 5',
        'tolaria_telemetry_messages_total{receiver="notify.command",outcome="sent"} 1',
        'tolaria_telemetry_messages_total{receiver="notify.command",outcome="dropped"} 0',
        'tolaria_telemetry_messages_total{receiver="notify.command",outcome="thinned"} 0',
        'tolaria_telemetry_waiting{receiver="telemetry.bus"} 2',
        'tolaria_telemetry_waiting{receiver="notify.command"} 0',
    ]


@pytest.mark.parametrize(("celsius", "lines"), [(47, 4), (NVMLError, 3)])
def test_the_gpu_of_the_trainer_has_its_figures(facts, monkeypatch, celsius, lines):
    """By NVML, for the device that the trainer has reported. A figure that the device lacks has no line."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetTemperature=celsius))
    found = GpuReader().read("cuda:1")
    page = text(families(replace(facts, totals=None, gpu=found)), {})

    assert [line for line in page.splitlines() if line.startswith("tolaria_gpu")] == [
        f'tolaria_gpu_memory_used_bytes{{device="cuda:1"}} {20 * GIB}',
        f'tolaria_gpu_memory_bytes{{device="cuda:1"}} {40 * GIB}',
        'tolaria_gpu_utilization_ratio{device="cuda:1"} 0.93',
        'tolaria_gpu_temperature_celsius{device="cuda:1"} 47',
    ][:lines]


@pytest.mark.parametrize("module", [None, nvml(nvmlInit=NVMLError)], ids=["no package", "no driver"])
def test_without_figures_of_a_gpu_the_page_is_as_before(facts, monkeypatch, module):
    """No package, no driver, and a run on a processor."""
    monkeypatch.setitem(sys.modules, "pynvml", module)

    assert GpuReader().read("cuda") is None
    assert GpuReader().read("cpu") is None
    assert GpuReader().read("") is None


def test_a_driver_that_hangs_holds_up_one_page(monkeypatch):
    """While one read is under way, the next page is made without figures."""
    hangs, asked = threading.Event(), threading.Event()
    module = nvml()
    answer = module.nvmlDeviceGetMemoryInfo
    module.nvmlDeviceGetMemoryInfo = lambda handle: (asked.set(), hangs.wait(120), answer(handle))[2]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    reader, found = GpuReader(), []
    thread = threading.Thread(target=lambda: found.append(reader.read("cuda")))
    thread.start()
    assert asked.wait(120)
    assert reader.read("cuda") is None
    hangs.set()
    thread.join()

    assert found[0].total == 80 * GIB


def test_counters_of_two_lives_add_up_to_those_of_one():
    """Wherever the daemon was started again, also in the middle of a rollback."""
    events = went_back().events
    whole = added(events)
    assert whole.counters["steps_completed"] == 18
    assert whole.counters["rollbacks_succeeded"] == 1
    assert sum(whole.durations["rollback"].counts) == 1
    for cut in range(0, len(events), 5):
        both = added(events[:cut]).plus(added(events[cut:]))
        assert {name: n for name, n in both.counters.items() if n} == whole.counters
        assert {name: one.counts for name, one in both.durations.items()} == {
            name: one.counts for name, one in whole.durations.items()
        }


def test_time_is_spent_on_one_thing_at_a_time_and_none_between_two_lives():
    """The parts of a life make it up; those of two lives add up to the whole, without the time between them."""
    world = until(World(0), 6)
    world.command(m.Rollback(epoch=1, reason="too noisy"))
    until(world, 10)
    first = list(world.events)
    world.mono += 10**12
    world.restart_daemon(m.StartMode.EXPLICIT)
    world.run()
    second = world.events[len(first) :]
    begin = next(at for at, event in enumerate(second) if isinstance(event, m.DaemonStarted))
    first, second = first + second[:begin], second[begin:]
    lives = [one[-1].mono - one[0].mono for one in (first, second)]

    assert [sum(added(one).spent_ns.values()) for one in (first, second, first + second)] == [*lives, sum(lives)]
    assert added(first).plus(added(second)).spent_ns == added(first + second).spent_ns
    assert {"training", "starting", "rolling back", "validating"} <= {
        what for what, ns in added(first).spent_ns.items() if ns
    }


async def test_what_was_before_the_start_is_added_up_by_a_process_of_its_own(tmp_path):
    """Until it is done the counters are unknown, not wrong."""
    events = until(World(0), 10).events
    journal = write_journal(events, tmp_path / "journal")
    earlier = EarlierTotals(journal, len(events) - 5)
    assert earlier.now() is None
    await earlier.settled()

    assert earlier.now() == added(events[:-5])
    assert EarlierTotals(journal, 0).now() == Totals()
    await earlier.close()


def test_any_name_and_number_can_be_written():
    """Labels with quotes and line ends; numbers that are not finite; a histogram that counts up to all."""
    strange = Family("a", "gauge", "x\n\\", (Sample(math.nan, {"l": 'q"\\\n\udc80'}), Sample(-math.inf)))
    page = text(
        [strange, histogram("h", "h", (0.5, 1.0), (1, 2, 3), 9.5, scale=10.0), Family("b", "gauge", "", ())], {}
    )

    assert page == (
        "# HELP a x\\n\\\\\n# TYPE a gauge\n"
        'a{l="q\\"\\\\\\n?"} NaN\na{} -Inf\n'
        "# HELP h h\n# TYPE h histogram\n"
        'h_bucket{le="5"} 1\nh_bucket{le="10"} 3\nh_bucket{le="+Inf"} 6\nh_sum{} 95\nh_count{} 6\n'
    )


@pytest.fixture
async def server(facts, tmp_path):
    made = MetricsServer(tmp_path / "run", lambda: facts, EarlierTotals(tmp_path / "run" / "journal", 0))
    await made.begin("127.0.0.1:0")
    yield made
    await made.close()


async def asked(server, request: bytes, *, port=False) -> bytes:
    if port:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
    else:
        reader, writer = await asyncio.open_unix_connection(str(server._run_dir / METRICS_NAME))
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_socket_and_the_port_give_the_page(server):
    """HEAD gives its length; what is not the page is refused; a request that is none gets no answer."""
    get = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    for port in (False, True):
        head, _, body = (await asked(server, get, port=port)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"text/plain; version=0.0.4" in head
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"tolaria_step{" in body
    assert (await asked(server, get.replace(b"GET", b"HEAD"))).endswith(b"\r\n\r\n")
    assert (await asked(server, get.replace(b"/metrics", b"/"))).startswith(b"HTTP/1.1 404 ")
    assert (await asked(server, get.replace(b"GET", b"POST"))).startswith(b"HTTP/1.1 405 ")
    for garbage in (b"", b"\r\n\r\n", b"\0" * 100, b"GET /metrics", b"x" * 100_000):
        assert not (await asked(server, garbage)).startswith(b"HTTP/1.1 200")
    assert (server._run_dir / METRICS_NAME).stat().st_mode & 0o777 == 0o660


async def test_a_page_that_takes_long_does_not_stop_the_loop(server, facts):
    """It is made in a thread: while it waits for a lock the loop goes on, and opens the lock."""
    lock = threading.Event()

    def slow():
        assert lock.wait(60)
        return facts

    server._facts = slow
    answer = asyncio.create_task(asked(server, b"GET /metrics HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    begun = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - begun < 60
    lock.set()

    assert b"tolaria_step{" in await answer


async def test_clients_that_do_not_read_are_let_go(server, monkeypatch):
    """A page that does not fit a socket's buffer, and nobody takes it: the connection ends after the time."""
    monkeypatch.setattr("tolariad.daemon.metrics._REQUEST_S", 0.2)
    server._rendered = lambda _: "x" * 10_000_000
    path = str(server._run_dir / METRICS_NAME)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert await becomes_true(lambda: server._answers)
        assert await becomes_true(lambda: not server._answers)
        client.settimeout(60)
        size = 0
        while piece := await asyncio.to_thread(client.recv, 1 << 20):
            size += len(piece)
    assert size < 10_000_000


async def test_more_clients_than_there_is_room_for_are_turned_away(server, monkeypatch):
    """They hold no descriptor of the recorder; the others are served."""
    monkeypatch.setattr("tolariad.daemon.metrics._CLIENTS_MAX", 3)
    path = str(server._run_dir / METRICS_NAME)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(6)]
        for one in silent:
            one.connect(path)
        assert await becomes_true(lambda: len(server._answers) == 3)
        for one in silent[3:]:
            one.settimeout(60)
            assert await asyncio.to_thread(one.recv, 1) == b""
        silent[0].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await asyncio.to_thread(silent[0].recv, 4096)).startswith(b"HTTP/1.1 200")


async def test_many_who_ask_get_the_same_page(server, facts):
    """However many there are, five pages a second are made at most; a later one shows what is new."""
    made = []
    server._facts = lambda: (made.append(1), facts)[1]
    begun = time.monotonic()
    pages = await asyncio.gather(*(server.page() for _ in range(200)))
    for _ in range(20):
        pages.append(await server.page())
    took = time.monotonic() - begun

    assert len(made) <= 1 + took / 0.2
    assert set(pages) == {pages[0]}
    server._facts = lambda: replace(facts, memory=123_456)
    server._made_s = -math.inf
    assert "tolaria_memory_usage_bytes" in await server.page()
    assert "123456" in await server.page()


async def test_an_address_that_is_taken_is_said_and_the_run_goes_on(server, caplog):
    """Also a name that leads nowhere. The socket serves on."""
    with socket.socket() as taken, caplog.at_level(logging.WARNING):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        await server.listen(f"127.0.0.1:{taken.getsockname()[1]}")
    assert "The run goes on" in caplog.text
    assert server.ports == []
    await server.listen("127.0.0.1:0")
    assert len(server.ports) == 1
    await server.listen(None)
    assert server.ports == []
    assert b"tolaria_step{" in await asked(server, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_the_socket_of_a_killed_daemon_is_replaced_and_ones_own_removed(facts, tmp_path):
    """Whoever has replaced it keeps it."""
    path = tmp_path / "run" / METRICS_NAME
    first = MetricsServer(tmp_path / "run", lambda: facts, EarlierTotals(tmp_path, 0))
    second = MetricsServer(tmp_path / "run", lambda: facts, EarlierTotals(tmp_path, 0))
    await first.begin(None)
    await second.begin(None)
    await first.close()
    assert path.exists()
    await second.close()
    assert not path.exists()


@pytest.mark.parametrize("listen", ["9108", ":9108", "localhost", "localhost:", "localhost:x", "localhost:70000", ""])
def test_an_address_that_is_none_is_refused(listen):
    """The sentence says what an address looks like, or what a port is."""
    (problem,) = check(read_settings({"task": "digits", "metrics": {"listen": listen}}))
    assert problem.path == "metrics.listen"
    assert re.search("host:port|port from", problem.what)
    assert check(read_settings({"task": "digits", "metrics": {"listen": "[::1]:9108"}})) == []


def test_an_event_that_says_nothing_changes_nothing():
    """As most events do."""
    assert added([m.EpochStarted(epoch=1)]) == Adding().now
