"""The collector: who offers never waits, a receiver's faults cost messages only, an emergency passes the queue."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tests.waiting import PATIENCE_S
from tolariad.telemetry import TelemetryCollector, TelemetryMessage
from tolariad.telemetry import TelemetryPriority as P
from tolariad.telemetry.collector import Unreachable


class Bus:
    """A receiver whose calls a test controls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.urgent: list[str] = []
        self.fault: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.changed = asyncio.Event()
        self.is_closed = False

    async def publish(self, messages):
        await self.open.wait()
        self.changed.set()
        if self.fault is not None:
            raise self.fault
        self.calls.append([one.event_type for one in messages])

    async def send_immediate(self, message):
        self.urgent.append(message.event_type)
        self.changed.set()

    async def close(self):
        self.is_closed = True

    async def until(self, condition):
        """Wait until a call has made the condition true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.changed.wait()
                self.changed.clear()
                await asyncio.sleep(0)


def message(name: str, priority: P = P.NORMAL) -> TelemetryMessage:
    return TelemetryMessage(1, priority, "tolaria", name, {})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("tolariad.telemetry.collector._GATHER_S", 0.0)
    monkeypatch.setattr("tolariad.telemetry.collector._AGAIN_S", 0.001)


async def test_messages_of_another_thread_are_sent_together_and_in_order():
    """The kernel's thread offers; one call has all that came meanwhile, the most important first."""
    bus = Bus()
    collector = TelemetryCollector(bus)
    bus.open.clear()
    collector.start()
    collector.offer(message("first"))

    def offer() -> None:
        for name, priority in (("a", P.LOW), ("b", P.CRITICAL), ("c", P.LOW), ("d", P.HIGH)):
            collector.offer(message(name, priority))

    thread = threading.Thread(target=offer)
    thread.start()
    thread.join()
    bus.open.set()
    await collector.close(PATIENCE_S)

    sent = [name for call in bus.calls for name in call]
    assert sorted(sent) == ["a", "b", "c", "d", "first"]
    assert sent.index("b") < sent.index("d") < sent.index("a") < sent.index("c")
    assert len(bus.calls) < len(sent)
    assert bus.is_closed
    assert (collector.counts.sent, collector.counts.waiting, collector.counts.dropped) == (5, 0, 0)


async def test_an_emergency_passes_a_call_that_hangs():
    """`publish` does not return; the emergency is sent all the same, from the queue's own thread or a program's."""
    bus = Bus()
    bus.open.clear()
    collector = TelemetryCollector(bus)
    collector.start()
    collector.offer(message("stuck"))
    collector.offer(message("fire", P.EMERGENCY))
    await bus.until(lambda: bus.urgent)
    await collector.collect_telemetry(P.EMERGENCY, "tolaria", "smoke", {})
    assert bus.urgent == ["fire", "smoke"]
    assert bus.calls == []
    bus.open.set()
    await collector.close(PATIENCE_S)

    assert bus.calls == [["stuck"]]


async def test_a_receiver_that_is_gone_gets_the_same_messages_when_it_is_back(caplog):
    """It is said once that it is gone and once that it is back; nothing is lost while there is room."""
    bus = Bus()
    bus.fault = Unreachable("connection refused")
    collector = TelemetryCollector(bus)
    collector.start()
    with caplog.at_level(logging.WARNING):
        collector.offer(message("a"))
        await bus.until(lambda: collector.counts.why is not None)
        assert collector.counts.why == "connection refused"
        bus.fault = None
        await bus.until(lambda: collector.counts.sent == 1)
    await collector.close(PATIENCE_S)

    assert bus.calls == [["a"]]
    assert collector.counts.why is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


async def test_a_receiver_that_refuses_costs_the_messages_only():
    """A fault of the receiver's own code counts them as lost, and the next ones are sent."""
    bus = Bus()
    bus.fault = RuntimeError("a defect of the receiver")
    collector = TelemetryCollector(bus)
    collector.start()
    collector.offer(message("a"))
    await bus.until(lambda: collector.counts.dropped == 1)
    bus.fault = None
    collector.offer(message("b"))
    await collector.close(PATIENCE_S)

    assert bus.calls == [["b"]]


async def test_the_loss_is_said_every_thousand_messages(caplog):
    """A queue of ten and 3 010 messages, with nobody to take them: three warnings, with the counts."""
    collector = TelemetryCollector(Bus(), max_queue_size=10)
    with caplog.at_level(logging.WARNING):
        for number in range(3010):
            await collector.collect_telemetry(P.NORMAL, "tolaria", str(number), {})

    assert collector.dropped_count == 3000
    assert [record.getMessage().split(" telemetry")[0] for record in caplog.records] == [
        "Dropped 1000",
        "Dropped 2000",
        "Dropped 3000",
    ]


async def test_the_end_does_not_wait_for_a_receiver_that_hangs(caplog):
    """Its limit passes, the task is cancelled, the rest is counted."""
    bus = Bus()
    bus.open.clear()
    collector = TelemetryCollector(bus)
    collector.start()
    collector.offer(message("stuck"))
    with caplog.at_level(logging.WARNING):
        await collector.close(0.05)

    assert bus.is_closed
    assert "1 telemetry messages to bus were not sent" in caplog.text


async def test_a_hanging_emergency_of_a_program_is_given_up(monkeypatch):
    """`collect_telemetry` returns after its limit, and does not raise."""
    monkeypatch.setattr("tolariad.telemetry.collector._EMERGENCY_S", 0.01)
    bus = Bus()

    async def hang(_message):
        await asyncio.Event().wait()

    bus.send_immediate = hang
    collector = TelemetryCollector(bus)
    await collector.collect_telemetry(P.EMERGENCY, "tolaria", "fire", {})

    assert collector.dropped_count == 1
