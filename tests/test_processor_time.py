"""How long threads waited for a processor, against the system's own figures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tolariad import processor_time
from tolariad.processor_time import waited_s


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel was built without schedstat")
def test_a_thread_waits_while_others_use_its_core():
    """Two processes on one core: each waits about half of the time, and the sum of both is counted."""
    core = min(os.sched_getaffinity(0))
    both = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for one in both:
            os.sched_setaffinity(one.pid, {core})
        pids = [one.pid for one in both]
        before = waited_s(pids)
        threading.Event().wait(0.5)
        assert 0.05 < waited_s(pids) - before < 20
        # A thread that is named twice counts once.
        before, twice, after = waited_s(pids), waited_s([*pids, *pids]), waited_s(pids)
        assert before <= twice <= after
    finally:
        for one in both:
            one.kill()
            one.wait()


def test_a_thread_that_does_not_exist_has_waited_for_nothing():
    """Nor has the id 0: a page on which no id was written yet has that."""
    # The system gives no id above 2**22.
    assert waited_s(()) == waited_s((0,)) == waited_s((2**22 + 1,)) == 0.0
    assert waited_s((threading.get_native_id(),)) >= 0.0


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "starved"),
    [(0.1, 1.9, False), (0.1, 2.1, True), (0.3, 2.1, False), (9.0, 90.0, True), (0, 0, False)],
)
def test_a_thread_starves_if_it_waits_for_seconds_and_hardly_runs(monkeypatch, ran_s, waited_s, starved):
    """One that sleeps, or gets a ninth of what it asks for, does not."""
    monkeypatch.setattr(processor_time, "_schedstat", lambda thread: (int(1e9 * ran_s), int(1e9 * waited_s)))

    assert processor_time.has_starved(7) is starved


def test_a_thread_that_is_gone_has_not_starved():
    """Nor does one of a system without these figures."""
    assert not processor_time.has_starved(0)
