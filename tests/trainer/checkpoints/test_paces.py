"""The pace of a checkpoint beside training: its measurements, by a clock of the test, and what they lead to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tolariad.core.calc.checkpoints.pacing import FIRST, LEAST, Beside
from tolariad.storage import Pace, pace
from tolariad.storage.pace import AdaptivePace
from tolariad.trainer.checkpoints.paces import Paces, TrainingAndJournal

STEP = 0.01
PIECE = 2 << 20


class Machine:
    """A clock, a run whose steps take `step_s`, a journal, and a disk that takes `disk_s` for a piece."""

    def __init__(self, step_s=STEP, append_s=0.001, disk_s=0.001):
        self.now, self.step_s, self.append_s, self.disk_s = 50.0, step_s, append_s, disk_s
        self.took = []
        self.page = SimpleNamespace(durable=3, write_ns=1_000_000)
        self.usual = STEP
        self._into = 0.0

    def sleep(self, seconds):
        """Let time pass; steps end and are durable meanwhile."""
        self.now += seconds
        self._into += seconds
        while self.step_s and self._into >= self.step_s:
            self._into -= self.step_s
            self.took.append(self.step_s)
            self.page.durable += 1
            self.page.write_ns = round(self.append_s * 1e9)

    @property
    def beside(self):
        return TrainingAndJournal(self.page, lambda: self, lambda: self.now)

    @property
    def usual_step_s(self):
        return self.usual

    def taken_beside(self):
        took, self.took = self.took, []
        return took

    def watched(self, seconds, of_piece=0.002):
        """Write pieces for so long; return what was seen of all windows."""
        beside, found, size = self.beside, [], 0
        beside.begin()
        end = self.now + seconds
        while self.now < end:
            self.sleep(of_piece)
            beside.note()
            size += PIECE
            if (seen := beside.seen(size)) is not None:
                found.append(seen)
                size = 0
        return found


def test_a_step_is_measured_in_usual_ones_and_the_speed_in_bytes():
    """A step twice as long as usual, a write of the journal of 3 ms, a piece each 2 ms."""
    found = Machine(step_s=2 * STEP, append_s=0.003).watched(1.0)

    assert len(found) >= 5
    assert all(one.step == pytest.approx(2.0, rel=0.11) for one in found)
    assert {one.append_s for one in found} == {0.003}
    assert {one.usual_append_s for one in found} == {0.001}
    assert all(one.bytes_s == pytest.approx(PIECE / 0.002, rel=0.05) for one in found)


def test_a_step_that_contains_a_validation_does_not_count():
    """Others of the window decide. If training stands for long, nothing is known of steps, and nothing suffers."""
    machine = Machine()
    machine.step_s = 0.0
    standing = machine.watched(3.0)
    machine.step_s, machine._into = STEP, 0.0
    (first, *_) = machine.watched(0.5)

    assert {one.step for one in standing} == {None}
    assert 2 <= len(standing) <= 3
    assert first.step == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize(("step_s", "windows"), [(0.1, 13), (0.5, 8), (2.0, 4)])
def test_a_window_waits_for_some_steps_where_steps_are_long(step_s, windows):
    """For six of them, or for one if they take a second."""
    machine = Machine(step_s=step_s)
    machine.usual = step_s
    found = machine.watched(8.0)

    assert 0.7 * windows <= len(found) <= windows
    assert all(one.step == pytest.approx(1.0, rel=0.01) for one in found)


def test_of_the_journals_writes_a_quarter_decides():
    """One that takes long, such as the one that begins a segment, is nothing unusual."""
    machine = Machine()
    beside = machine.beside
    beside.begin()
    for step in range(1, 41):
        machine.append_s = 0.05 if step % 10 == 0 else 0.001
        machine.sleep(STEP)
        beside.note()
    rare = beside.seen(1)
    for step in range(1, 41):
        machine.append_s = 0.05 if step % 3 == 0 else 0.001
        machine.sleep(STEP)
        beside.note()

    assert (rare.append_s, beside.seen(1).append_s) == (0.001, 0.05)


def test_a_journal_that_writes_nothing_is_not_judged_by_its_last_write():
    """That may be from before the checkpoint."""
    machine = Machine()
    machine.step_s, machine.page.write_ns = 0.0, 10**9
    machine.usual = 0.0

    assert {one.append_s for one in machine.watched(1.0)} == {None}


def test_where_no_step_is_known_the_disk_alone_decides():
    """The first checkpoint of a run, before a step was timed."""
    machine = Machine(step_s=5 * STEP)
    machine.usual = 0.0

    assert {one.step for one in machine.watched(0.5)} == {None}


def written(machine, monkeypatch, megabytes, throttle="auto", paces=None):
    """Write through a pace; return seconds, and the Paces."""
    monkeypatch.setattr(pace, "time", SimpleNamespace(sleep=machine.sleep, monotonic=lambda: machine.now))
    if paces is None:
        paces = Paces(throttle, machine.page, lambda: machine)
        paces._beside = machine.beside
    one, began = paces(lambda: None), machine.now
    for _ in range(round(megabytes * 1e6 / PIECE)):
        one.wait(PIECE)
        machine.sleep(machine.disk_s)
    return machine.now - began, paces


def test_a_gigabyte_takes_what_the_disk_needs_if_nothing_suffers(monkeypatch):
    """The disk gives 2 GB/s; the first windows are slower, and the next checkpoint begins where this one ended."""
    machine = Machine()
    first, paces = written(machine, monkeypatch, 1000)
    second, _ = written(machine, monkeypatch, 1000, paces=paces)

    assert 0.5 < first < 1.3
    assert second == pytest.approx(0.5, rel=0.1)


def test_it_slows_down_while_the_journal_suffers(monkeypatch):
    """Beside any writing its writes take 50 ms: it goes on at the least speed."""
    seconds, paces = written(Machine(append_s=0.05), monkeypatch, 500)

    assert paces._pacing.bytes_s == LEAST
    assert seconds > 0.8 * 500e6 / LEAST


def test_it_does_not_crawl_where_steps_suffer_at_any_speed(monkeypatch):
    """Beside any writing they take twice as long: slower, they would do so for longer."""
    seconds, paces = written(Machine(step_s=2 * STEP), monkeypatch, 500)

    assert paces._pacing.bytes_s > FIRST
    assert seconds < 2.5


def test_steps_shorter_than_a_piece_are_measured_exactly():
    """A piece takes 22 ms, a step 16: seen from between pieces, the median step would take 22 and seem to suffer."""
    machine = Machine(step_s=0.016)
    machine.usual = 0.016

    found = machine.watched(1.0, of_piece=0.022)

    assert len(found) >= 5
    assert all(one.step == pytest.approx(1.0) for one in found)


@pytest.mark.parametrize(("throttle", "seconds"), [(100.0, 2.0), (None, 0.1), (50.0, 4.0)])
def test_a_throttle_of_the_configuration_wins(monkeypatch, throttle, seconds):
    """Whatever suffers."""
    took, _ = written(Machine(step_s=5 * STEP), monkeypatch, 200, throttle)

    assert took == pytest.approx(seconds, rel=0.06)


def test_a_pace_that_is_lifted_stays_so(monkeypatch):
    """Training waits for this checkpoint, also if a window ends just then."""
    machine = Machine(step_s=5 * STEP)
    monkeypatch.setattr(pace, "time", SimpleNamespace(sleep=machine.sleep, monotonic=lambda: machine.now))
    lifting = []

    class Lifting:
        begin = note = lambda self: None

        def seen(self, size):
            lifting.append(size)
            if len(lifting) == 3:
                one.lift()
            return Beside(1e8, step=9.0)

    from tolariad.core.calc.checkpoints.pacing import Pacing

    one = AdaptivePace(Pacing(FIRST), Lifting(), lambda _: None, lambda: None)
    for _ in range(6):
        one.wait(PIECE)
    began = machine.now
    for _ in range(100):
        one.wait(PIECE)

    assert machine.now == began
    assert isinstance(one, Pace)
