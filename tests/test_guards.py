"""Breaker, timer and memory budget at the edge: core's rules with a clock, for callers in any thread."""

from __future__ import annotations

import threading

import pytest

from tolariad.guards import CircuitBreaker, MemoryBudgetManager


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_breaker_opens_waits_and_closes_again(clock):
    """Three failures, thirty seconds, one good try."""
    breaker = CircuitBreaker(clock=clock)
    for _ in range(3):
        assert breaker.is_closed()
        breaker.record_failure()
    assert breaker.state == "open"
    assert not breaker.allows()

    clock.now = 30.0

    assert breaker.state == "half_open"
    assert not breaker.is_closed()
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.record_success()
    assert breaker.is_closed()


def test_failures_from_many_threads_are_all_counted(clock):
    """A breaker with a threshold of 4 000 opens at exactly the 4 000th failure, whoever records it."""
    breaker = CircuitBreaker(4_000, clock=clock)

    def fail():
        for _ in range(1_000):
            breaker.record_failure()

    threads = [threading.Thread(target=fail) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(999):
        breaker.record_failure()

    assert breaker.is_closed()
    breaker.record_failure()
    assert breaker.state == "open"


@pytest.mark.parametrize("bad", [{"failure_threshold": 0}, {"reset_after_s": 0.0}, {"half_open_probes": 0}])
def test_a_breaker_that_could_never_work_is_refused(bad):
    """By ValueError, naming the three."""
    with pytest.raises(ValueError, match="failure_threshold and half_open_probes of 1 or more"):
        CircuitBreaker(**bad)


def test_one_pool_is_shared_by_all():
    """The source's split of 100 GB; nothing is left over."""
    manager = MemoryBudgetManager(100.0)
    parts = {
        "model": 40.0,
        "optimizer": 25.0,
        "gradients": 15.0,
        "checkpoints": 8.0,
        "telemetry": 5.0,
        "morphogenetic": 5.0,
        "emergency": 2.0,
    }

    assert {name: manager.allocate_budget(name) for name in parts} == pytest.approx(parts)


def test_a_device_has_a_pool_of_its_own():
    """Model, optimizer and gradients take theirs of the device, the rest of the host; each pool has its own sum."""
    manager = MemoryBudgetManager(64.0, device_memory_gb=10.0, shares={"model": 0.6, "checkpoints": 0.5})

    assert manager.allocate_budget("model") == pytest.approx(6.0)
    assert manager.allocate_budget("checkpoints") == pytest.approx(32.0)
    with pytest.raises(ValueError, match=r"shares of host memory sum to 1\.52"):
        MemoryBudgetManager(64.0, shares={"model": 0.6, "checkpoints": 0.4})
    with pytest.raises(ValueError, match=r"shares of device memory sum to 1\.1"):
        MemoryBudgetManager(64.0, device_memory_gb=10.0, shares={"model": 0.7})


def test_an_unknown_component_is_named_with_the_known_ones():
    """In both methods, and among the collectors."""
    manager = MemoryBudgetManager(8.0)

    for ask in (manager.allocate_budget, manager.trigger_gc_if_needed):
        with pytest.raises(KeyError, match=r"modle.*checkpoints, emergency, gradients, model"):
            ask("modle")
    with pytest.raises(KeyError, match="caches"):
        MemoryBudgetManager(8.0, collectors={"caches": list})


@pytest.mark.parametrize(("component", "interval"), [("checkpoints", 300), ("telemetry", 60), ("morphogenetic", 180)])
def test_each_component_is_collected_at_its_interval(clock, component, interval):
    """Not at the interval's last moment, right after it, and then a whole interval later again."""
    collected = []
    manager = MemoryBudgetManager(8.0, clock=clock, collectors={component: lambda: collected.append(clock.now)})
    answers = []
    for now in (interval, interval + 1, 2 * interval, 2 * interval + 2):
        clock.now = float(now)
        answers.append(manager.trigger_gc_if_needed(component))

    assert answers == [False, True, False, True]
    assert collected == [interval + 1, 2 * interval + 2]
    assert manager.trigger_gc_if_needed("model") is False


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_sizes_that_cannot_be_are_refused(bad):
    """Zero, negative, not finite: of the host and of the device."""
    with pytest.raises(ValueError, match="total_memory_gb must be a size above 0"):
        MemoryBudgetManager(bad)
    with pytest.raises(ValueError, match="device_memory_gb must be a size above 0"):
        MemoryBudgetManager(1.0, device_memory_gb=bad)
