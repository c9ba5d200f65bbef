"""The breaker at the edge: core's rules with a clock, for callers in any thread."""

from __future__ import annotations

import threading

import pytest

from tolariad.guards import CircuitBreaker


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

    clock.now = 30.0

    assert breaker.state == "half_open"
    assert not breaker.is_closed()
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
