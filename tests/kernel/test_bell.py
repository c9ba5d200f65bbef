"""Where the kernel sleeps: a ring is never lost, and wakes once."""

from __future__ import annotations

import os
import time

import pytest

from tolariad.kernel.bell import Bell


@pytest.fixture
def bell():
    one = Bell()
    yield one
    one.close()


def test_a_ring_before_the_sleep_ends_it_at_once(bell):
    """And says nothing of a socket."""
    bell.ring()
    begun = time.monotonic()

    assert bell.sleep(60_000) is False
    assert time.monotonic() - begun < 30


def test_a_thread_that_is_stopped_amid_its_ring_wakes_once_and_not_for_ever(bell, monkeypatch):
    """A kernel of a higher class than the one that rings would else never let it say that it rang, and never sleep."""
    write = os.eventfd_write

    def write_and_stop(descriptor: int, value: int) -> None:
        write(descriptor, value)
        raise InterruptedError

    monkeypatch.setattr(os, "eventfd_write", write_and_stop)
    with pytest.raises(InterruptedError):
        bell.ring()
    bell.sleep(60_000)
    bell.clear()

    begun = time.monotonic()
    bell.sleep(50)
    assert time.monotonic() - begun > 0.04


def test_a_ring_between_two_looks_is_not_lost(bell):
    """Rung again after it was cleared: the next sleep ends at once, too."""
    for _ in range(3):
        bell.ring()
        begun = time.monotonic()
        bell.sleep(60_000)
        bell.clear()
        assert time.monotonic() - begun < 30
