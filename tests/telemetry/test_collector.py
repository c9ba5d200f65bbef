"""The collector never makes its caller wait, whatever the bus does."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tolariad.telemetry import MemorySink, TelemetryCollector, TelemetryPriority


async def test_messages_reach_the_sink():
    """What is collected is published by the task, most important first."""
    sink = MemorySink()
    collector = TelemetryCollector(sink)
    await collector.collect_telemetry(TelemetryPriority.LOW, "test", "first", {"a": 1})
    await collector.collect_telemetry(TelemetryPriority.HIGH, "test", "second", {})
    task = asyncio.create_task(collector.run())
    await asyncio.sleep(0.02)
    task.cancel()
    assert [one.event_type for one in sink.recent] == ["second", "first"]
    assert sink.recent[1].payload == {"a": 1}


async def test_a_stuck_bus_costs_messages_not_time():
    """With a bus that never answers, collecting 1000 messages into 10 places takes no wait and counts 990 drops."""

    class Stuck:
        async def publish(self, _message):
            await asyncio.Event().wait()

    collector = TelemetryCollector(Stuck(), max_queue_size=10)
    for _ in range(1000):
        await collector.collect_telemetry(TelemetryPriority.NORMAL, "test", "flood", {})
    assert collector.dropped_count == 990
    assert collector.take_dropped() == {"NORMAL": 990}
    assert collector.take_dropped() == {}


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_is_never_lost(turns):
    """Whenever it comes, also amid a backlog: a task that went on would keep its loop, and the daemon, from ending."""
    collector = TelemetryCollector(MemorySink(), max_queue_size=1000)
    for _ in range(1000):
        collector.offer(TelemetryPriority.NORMAL, "test", "backlog", {})
    task = asyncio.create_task(collector.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)

    assert task.cancelled()


async def test_a_broken_bus_is_counted_and_said_once(caplog):
    """A bus that raises drops the message; the log has one line, not one a message."""

    class Broken:
        async def publish(self, _message):
            raise ConnectionError("no bus today")

    collector = TelemetryCollector(Broken())
    for _ in range(3):
        collector.offer(TelemetryPriority.CRITICAL, "test", "lost", {})
        assert await collector.send_one()
    assert collector.take_dropped() == {"CRITICAL": 3}
    assert sum("no bus today" in line for line in caplog.text.splitlines()) == 1


async def test_of_what_is_less_than_high_one_in_ten_is_kept_while_the_run_is_careful():
    """The first and every tenth; what is HIGH or more is kept whole, nothing of it counts as lost, and it ends with the mode."""
    sink = MemorySink()
    collector = TelemetryCollector(sink)

    def offer(name):
        for number in range(30):
            collector.offer(list(TelemetryPriority)[number % 5], "test", name, {"number": number // 5})

    collector.sample(10)
    offer("careful")
    collector.sample(10)
    offer("careful")
    collector.sample(1)
    offer("as ever")
    while await collector.send_one():
        pass
    kept = Counter((one.event_type, one.priority.name) for one in sink.recent)
    low = sum(kept["careful", name] for name in ("LOW", "NORMAL"))

    # Twelve of either, in two goes: 24 in all.
    assert low == 3
    assert [kept["careful", name] for name in ("HIGH", "CRITICAL", "EMERGENCY")] == [12] * 3
    assert [kept["as ever", one.name] for one in TelemetryPriority] == [6] * 5
    assert collector.dropped_count == 0
