"""The telemetry queue loses the right message, and says how many."""

from __future__ import annotations

import random

import pytest

from tolariad.core.control.telemetry import TelemetryMessage, TelemetryPriority
from tolariad.telemetry.queue import TelemetryQueue

LOW, NORMAL, HIGH, CRITICAL, EMERGENCY = TelemetryPriority


def message(priority: TelemetryPriority, number: int = 0) -> TelemetryMessage:
    return TelemetryMessage(number, priority, "test", "tested", {})


def drain(queue: TelemetryQueue) -> list[TelemetryMessage]:
    taken = []
    while (one := queue.take()) is not None:
        taken.append(one)
    return taken


def test_most_important_first_and_oldest_first_among_equals():
    """What is taken is ordered by priority, then by age."""
    queue = TelemetryQueue(10)
    for number, priority in enumerate([LOW, HIGH, NORMAL, HIGH, EMERGENCY, LOW]):
        queue.put(message(priority, number))
    assert [one.timestamp_ns for one in drain(queue)] == [4, 1, 3, 2, 0, 5]


def test_a_full_queue_drops_the_oldest_of_the_lowest():
    """An important message always finds room while there is anything less important."""
    queue = TelemetryQueue(3)
    for number, priority in enumerate([LOW, LOW, CRITICAL, EMERGENCY]):
        queue.put(message(priority, number))
    assert [one.timestamp_ns for one in drain(queue)] == [3, 2, 1]
    assert queue.dropped()[LOW] == 1


def test_a_message_lower_than_all_queued_is_the_one_dropped():
    """A low message never pushes out a higher one."""
    queue = TelemetryQueue(2)
    for priority in (HIGH, CRITICAL, NORMAL):
        queue.put(message(priority))
    assert [one.priority for one in drain(queue)] == [CRITICAL, HIGH]
    assert queue.dropped() == {LOW: 0, NORMAL: 1, HIGH: 0, CRITICAL: 0, EMERGENCY: 0}


def test_nothing_is_lost_without_being_counted(seed):
    """Over any sequence of puts and takes: put = taken + queued + dropped, and the bound holds."""
    rng = random.Random(seed)
    queue, put, taken = TelemetryQueue(17), 0, 0
    for _ in range(2000):
        if rng.random() < 0.7:
            queue.put(message(rng.choice(list(TelemetryPriority))))
            put += 1
        elif queue.take() is not None:
            taken += 1
        assert len(queue) <= 17
    assert put == taken + len(queue) + sum(queue.dropped().values())


def test_a_queue_of_nothing_is_refused():
    """A size below 1 is a mistake that is named."""
    with pytest.raises(ValueError, match="at least 1"):
        TelemetryQueue(0)
