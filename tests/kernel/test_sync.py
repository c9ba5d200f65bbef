"""When a step report becomes durable: alone, or together with others after a moment (`journal.sync`)."""

from __future__ import annotations

import select

from journal import Reader
from tests.kernel.rig import SOON_S, Rig, events_on_disk
from tolariad.core import messages as m
from tolariad.core.decision import Accepted
from tolariad.kernel.recorder import HOLD_NS
from tolariad.kernel.trainer_link import LAG_NS
from tolariad.kernel.wakeup import DOZE_MS


def frames_of_steps(folder):
    """Return the number of step events in each batch that has any: entries of one batch have the same wall time."""
    walls = [entry.wall_ns for entry in Reader(folder) if b"StepCompleted" in bytes(entry.event)]
    return [walls.count(wall) for wall in dict.fromkeys(walls)]


def test_step_reports_may_wait_for_company_and_are_durable_soon(tmp_path):
    """`sync: batch`: fifty quick steps need few frames, and none waits longer than a moment."""
    rig = Rig(tmp_path / "journal", sync="batch")
    trainer = rig.until_training()
    assert trainer.page.lag_ns > 0
    for number in range(1, 51):
        last = rig.step(number)
    rig.wait(lambda: trainer.page.durable >= last)

    assert rig.kernel.durable.progress.step == 50
    assert len(frames_of_steps(tmp_path / "journal")) < 25
    rig.close()


def test_an_order_is_written_at_once_with_the_steps_that_wait(tmp_path):
    """Only step reports are held back; the page never shows a number before it is durable."""
    rig = Rig(tmp_path / "journal", sync="batch")
    trainer = rig.until_training()
    last = rig.step(1)
    answer = rig.command(m.Note(text="now"))

    assert isinstance(answer, Accepted)
    names = [type(event).__name__ for event in events_on_disk(tmp_path / "journal")]
    assert names[answer.seq - 1] == "NoteAdded"
    rig.wait(lambda: trainer.page.durable >= last)
    assert "StepCompleted" in [type(event).__name__ for event in events_on_disk(tmp_path / "journal")]
    rig.close()


def test_every_step_has_a_frame_of_its_own_where_that_was_asked_for(tmp_path):
    """`sync: step`: no lag is allowed, and a single report is written alone."""
    rig = Rig(tmp_path / "journal", sync="step")
    trainer = rig.until_training()
    for number in range(1, 6):
        last = rig.step(number)
        rig.wait(lambda last=last: trainer.page.durable >= last)

    assert trainer.page.lag_ns == 0
    assert frames_of_steps(tmp_path / "journal") == [1] * 5
    rig.close()


def test_what_is_held_back_is_durable_before_the_trainer_would_wait_for_it():
    """The longest time in the ring and held back leaves a fifth of the lag for the write."""
    longest_ns = DOZE_MS * 1_000_000 + HOLD_NS

    assert longest_ns <= 0.8 * LAG_NS


def woken(trainer, limit_s):
    """Return whether a packet comes for a sleeping trainer; a nudge is no order."""
    ready, _, _ = select.select([trainer._packets.fileno()], [], [], limit_s)
    assert trainer.order() is None
    return bool(ready)


def test_a_trainer_that_stands_at_its_gate_is_woken_when_its_report_is_durable(tmp_path):
    """Its own check after a millisecond is for lost wake-ups, and most steps wait for less."""
    rig = Rig(tmp_path / "journal", sync="step")
    trainer = rig.until_training()
    last = rig.step(1)
    rig.wait(lambda: trainer.page.durable >= last)
    assert not woken(trainer, 0.2)

    # The mark is set before the report is sent, so the kernel sees it with the report.
    trainer.page.set_waiting(last + 1)
    rig.step(2)

    assert woken(trainer, SOON_S)
    assert trainer.page.durable > last
    rig.close()


def test_a_trainer_before_a_frozen_page_is_not_woken_for_nothing(tmp_path):
    """Its report is durable but it may not continue. Only an order or an open gate ends its wait."""
    rig = Rig(tmp_path / "journal", sync="step")
    trainer = rig.until_training()
    trainer.page.set_waiting(trainer.last_number + 1)
    rig.step(1)
    assert woken(trainer, SOON_S)
    trainer.page.freeze()
    trainer.page.set_waiting(trainer.last_number + 1)
    last = rig.step(2)
    rig.wait(lambda: trainer.page.durable >= last)

    assert not woken(trainer, 0.2)
    rig.close()
