"""What `tolaria watch` takes of a core once it shows a run, and the time to its first byte.

WATCHED_S (60) is the time that is measured; 20 s before it are its start. WATCHED_STEPS ("1000,1000000") are the steps
that the runs have had before; they make 50 more a second. FIRST_BYTES (20) is the number of starts. Nothing is judged.
"""

from __future__ import annotations

import os
import statistics
import threading
import time

import pytest

from tests.bench.machine import machine
from tests.bench.observers import Watch, beside
from tests.control.fakes import Recorder, Served
from tests.waiting import wait_for
from tolariad.core import messages as m

WATCHED_S = float(os.environ.get("WATCHED_S", "60"))
STEPS = [int(one) for one in os.environ.get("WATCHED_STEPS", "1000,1000000").split(",")]
FIRST_BYTES = int(os.environ.get("FIRST_BYTES", "20"))
_START_S = 20.0
_AT_ONCE = 4_000


def recorded(folder, steps):
    """Return a recorder of a run that has made so many steps."""
    recorder = Recorder(folder / "run" / "journal")
    recorder.begin_run(epochs=2 * steps)
    for first in range(1, steps + 1, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, steps + 1))
        recorder.record(*(step_of(number) for number in numbers))
    return recorder


def step_of(number):
    place = {"step": number, "epoch": (number - 1) // 10 + 1, "batch": (number - 1) % 10 + 1}
    return m.StepCompleted(**place, loss=1.0 / number, grad_norm=1.0, lr=0.1, rates=1)


def trained(served, recorder):
    """Return a look that makes 50 steps a second."""

    def train(over: threading.Event) -> None:
        while not over.wait(0.02):
            served.do(recorder.step)

    return train


@pytest.mark.bench
@pytest.mark.parametrize("steps", STEPS)
def test_the_share_of_a_core_of_a_watch_is_printed(tmp_path, steps):
    """Its own processor time from second 20 on, with a step each 20 ms."""
    pytest.importorskip("textual", reason="textual (extra `tui`) is not installed")
    recorder = recorded(tmp_path, steps)
    folder = tmp_path / "run"
    watch = Watch(folder, folder)
    with Served(recorder, folder) as served, beside(trained(served, recorder)), beside(watch.show):
        wait_for(lambda: watch.pid and watch.age_s > _START_S, "the start")
        begun, used, drawn = watch.age_s, watch.used_s(), watch.drawn
        start = used
        time.sleep(WATCHED_S)
        took, used, drawn = watch.age_s - begun, watch.used_s() - used, watch.drawn - drawn
    print(f"\n{machine()}")
    print(f"{'steps before':>14}{'a core':>9}{'kB/s':>7}{'CPU s of the start':>20}")
    print(f"{steps:>14}{used / took:>9.2%}{drawn / took / 1000:>7.2f}{start:>20.2f}")
    recorder.journal.close()
    assert drawn


@pytest.mark.bench
def test_the_first_byte_of_a_watch_is_printed(tmp_path):
    """On a terminal, of a live run."""
    pytest.importorskip("textual", reason="textual (extra `tui`) is not installed")
    recorder = recorded(tmp_path, 1000)
    folder = tmp_path / "run"
    found = []
    with Served(recorder, folder):
        for _ in range(FIRST_BYTES):
            watch = Watch(folder, folder)
            with beside(watch.show):
                wait_for(lambda shown=watch: shown.first_s, "the first byte")
            found.append(watch.first_s)
    found.sort()
    print(f"\n{machine()}\nfirst byte, s: median {statistics.median(found):.3f}, worst of {len(found)} {found[-1]:.3f}")
    recorder.journal.close()
    assert found
