"""The kernel's sleep: no wake-up is lost, and each one wakes it once."""

from __future__ import annotations

import os
import time

import pytest

from tolariad.kernel.wakeup import Wakeup


@pytest.fixture
def wakeup():
    one = Wakeup()
    yield one
    one.close()


def test_a_ring_before_the_sleep_ends_it_at_once(wakeup):
    """The sleep does not report a readable socket."""
    wakeup.wake()
    begun = time.monotonic()

    assert wakeup.sleep(60_000) is False
    assert time.monotonic() - begun < 30


def test_a_thread_that_is_stopped_amid_its_ring_wakes_once_and_not_for_ever(wakeup, monkeypatch):
    """A kernel of a higher class could otherwise preempt the calling thread for ever and never sleep."""
    write = os.eventfd_write

    def write_and_stop(descriptor: int, value: int) -> None:
        write(descriptor, value)
        raise InterruptedError

    monkeypatch.setattr(os, "eventfd_write", write_and_stop)
    with pytest.raises(InterruptedError):
        wakeup.wake()
    wakeup.sleep(60_000)
    wakeup.clear()

    begun = time.monotonic()
    wakeup.sleep(50)
    assert time.monotonic() - begun > 0.04


def test_a_ring_between_two_looks_is_not_lost(wakeup):
    """A wake-up after `clear` ends the next sleep at once."""
    for _ in range(3):
        wakeup.wake()
        begun = time.monotonic()
        wakeup.sleep(60_000)
        wakeup.clear()
        assert time.monotonic() - begun < 30
