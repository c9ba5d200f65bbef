"""The bus against a real Redis server: written once each, and training never waits for a server in any state."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import contextmanager

import pytest

from tests.daemon.harness import SETS, ForkedDaemon, of_type
from tests.outside.servers import redis_server
from tests.waiting import PATIENCE_S, wait_for
from tolariad import leyline as wire
from tolariad.core import messages as m
from tolariad.telemetry.bus import RedisBus
from tolariad.telemetry.collector import TelemetryCollector, Unreachable
from tolariad.telemetry.envelopes import EMERGENCY, NORMAL, TELEMETRY, entries
from tolariad.telemetry.messages import message_of

pytestmark = pytest.mark.outside
redis = pytest.importorskip("redis", reason="redis (extra `bus`) is not installed")
RUN = bytes(range(16))


def bus_to(url: str) -> RedisBus:
    return RedisBus(url, None, lambda messages: entries(RUN, "blue", messages))


def steps(first: int, count: int) -> list:
    made = (
        m.StepCompleted(step=seq, epoch=1, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, wall=seq)
        for seq in range(first, first + count)
    )
    return [message_of(one.step, one, epoch=1, step=one.step, phase="running") for one in made]


def troubles(first: int, count: int) -> list:
    return [
        message_of(seq, m.RunFrozen(why="x", wall=seq), epoch=1, step=1, phase="frozen")
        for seq in range(first, first + count)
    ]


@contextmanager
def asking(url: str):
    client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()


def ids(client, stream: str) -> list[bytes]:
    return [fields[b"id"] for _, fields in client.xrange(stream)]


async def test_messages_are_in_their_streams(tmp_path):
    """Steps, events and urgent ones; an envelope is read back from its bytes."""
    with redis_server(tmp_path) as url, asking(url) as client:
        bus = bus_to(url)
        note = message_of(9, m.NoteAdded(text="hello"), epoch=1, step=1, phase="running")
        await bus.publish([*troubles(7, 1), note, *steps(1, 3)])
        await bus.send_immediate(*troubles(10, 1))
        await bus.close()

        assert [client.xlen(stream) for stream in (TELEMETRY, NORMAL, EMERGENCY)] == [3, 1, 2]
        (_, fields), *_ = client.xrange(TELEMETRY)
        envelope = wire.EventEnvelope.FromString(fields[b"envelope"])
        assert envelope.event_id.encode() == fields[b"id"]
        assert wire.TelemetryPacket.FromString(envelope.payload).metrics[0].attributes["step"] == "1"


async def test_the_stream_of_emergencies_is_no_flood(tmp_path):
    """120 at once; the others go to the normal stream, and none is lost."""
    with redis_server(tmp_path) as url, asking(url) as client:
        bus = bus_to(url)
        before = time.monotonic()
        await bus.publish(troubles(1, 200))
        more = int(2 * (time.monotonic() - before)) + 1
        await bus.close()

        urgent, normal = client.xlen(EMERGENCY), client.xlen(NORMAL)
        assert urgent + normal == 200
        assert 120 <= urgent <= 120 + more


async def test_a_server_that_was_stopped_gets_each_message_once(tmp_path):
    """A call to a stopped process ends in its time; whatever it did when it went on, no id is there twice."""
    with redis_server(tmp_path) as url, asking(url) as client:
        pid = client.info("server")["process_id"]
        bus = bus_to(url)
        await bus.publish(steps(1, 5))
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="does not answer in time"):
                await bus.publish(steps(6, 5))
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: client.xlen(TELEMETRY) == 10, "what the stopped server had in its buffer")
        await bus.publish(steps(6, 5))
        await bus.close()

        found = ids(client, TELEMETRY)
        assert len(found) == len(set(found)) == 10


async def test_a_server_that_is_slow_or_started_again_gets_each_message_once(tmp_path):
    """Answers that come late are waited for; a server that has forgotten everything gets what comes after its start."""
    bus = bus_to(f"unix://{tmp_path}/redis.sock")
    with redis_server(tmp_path) as url, asking(url) as client:
        for number in range(3):
            client.client_pause(300)
            begun = time.monotonic()
            await bus.publish(steps(1 + 5 * number, 5))
            assert time.monotonic() - begun >= 0.2, "the server was not slow"
        found = ids(client, TELEMETRY)
        assert len(found) == len(set(found)) == 15
    with redis_server(tmp_path) as url, asking(url) as client:
        await bus.publish(steps(16, 5))
        await bus.close()

        assert [one.decode() for one in ids(client, TELEMETRY)] == [
            one.event_id for one in entries(RUN, "blue", steps(16, 5))
        ]


async def test_a_full_server_loses_old_entries_and_not_new_ones(tmp_path):
    """`noeviction`: it refuses XADD; our streams are cut, and the new entry is written."""
    with redis_server(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as url, asking(url) as client:
        bus = bus_to(url)
        for number in range(40):
            await bus.publish(steps(1 + 256 * number, 256))
        await bus.close()

        found = ids(client, TELEMETRY)
        assert found[-1].decode() == entries(RUN, "blue", steps(256 * 40, 1))[0].event_id
        assert 256 < len(found) < 256 * 40
        assert len(set(found)) == len(found)


async def test_what_waited_for_a_server_is_sent_when_it_comes(tmp_path, monkeypatch):
    """The collector tries again until the server is there; the order is kept."""
    monkeypatch.setattr("tolariad.telemetry.collector._AGAIN_S", 0.01)
    bus = bus_to(f"unix://{tmp_path}/redis.sock")
    collector = TelemetryCollector(bus)
    collector.start()
    for message in steps(1, 600):
        collector.offer(message)
    await asyncio.to_thread(wait_for, lambda: collector.counts.why)
    with redis_server(tmp_path) as url, asking(url) as client:
        await collector.close(PATIENCE_S)
        found = ids(client, TELEMETRY)
    assert [one.decode() for one in found] == [one.event_id for one in entries(RUN, "blue", steps(1, 600))]
    assert collector.dropped_count == 0


async def test_a_server_that_wants_a_password_gets_the_messages_later(tmp_path):
    """None, a wrong one, and the right one, which a reload may bring: nothing is lost by the first two."""
    with redis_server(tmp_path, "--requirepass", "sesame") as url:
        for secret in (None, lambda: "wrong"):
            bus = RedisBus(url, secret, lambda messages: entries(RUN, "blue", messages))
            with pytest.raises(Unreachable, match=r"(?i)password|authenticat"):
                await bus.publish(steps(1, 2))
            await bus.close()
        bus = RedisBus(url, lambda: "sesame", lambda messages: entries(RUN, "blue", messages))
        await bus.publish(steps(1, 2))
        await bus.close()
        with asking(url.replace("unix://", "unix://:sesame@")) as client:
            assert len(ids(client, TELEMETRY)) == 2


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 1_000_000, b"$9\r\nx", b"\0\r\n", b""])
async def test_what_is_no_redis_server_is_said(said):
    """Another protocol, a flood, half an answer, and none: in words, without a control character, in its time."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    bus = bus_to(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(Unreachable) as raised:
        await bus.publish(steps(1, 2))
    await bus.close()
    server.close()

    assert str(raised.value).isprintable()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://192.0.2.1:6379"])
def test_a_run_ends_as_usual_without_a_server(tmp_path, url):
    """Nobody listens, or nobody answers: the run completes, and the loss is said."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    daemon = ForkedDaemon(run_dir, sets=[*SETS, f"telemetry.bus_url={url}"])
    assert daemon.wait() == 0, daemon.stderr

    assert of_type(run_dir, m.RunCompleted)
    assert "Telemetry cannot be sent to telemetry.bus" in daemon.stderr


def test_a_run_is_on_the_bus(tmp_path):
    """Every event of the journal, in an envelope of its own, before the daemon has ended."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with redis_server(tmp_path) as url, asking(url) as client:
        daemon = ForkedDaemon(run_dir, sets=[*SETS, f"telemetry.bus_url={url}"])
        assert daemon.wait() == 0, daemon.stderr
        envelopes = [
            wire.EventEnvelope.FromString(fields[b"envelope"])
            for stream in (TELEMETRY, NORMAL, EMERGENCY)
            for _, fields in client.xrange(stream)
        ]
    kinds = [one.event_type for one in envelopes]

    assert kinds.count("StepCompleted") == len(of_type(run_dir, m.StepCompleted)) > 0
    assert kinds.count("RunCompleted") == kinds.count("span run") == 1
    assert kinds.count("span epoch") == kinds.count("EpochFinished") == 3
    assert len({one.event_id for one in envelopes}) == len(envelopes)
