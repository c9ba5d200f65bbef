"""`run.new_stage(why)` in a loop of one's own: recorded once, whatever the loop runs again."""

from __future__ import annotations

import pytest
from torch.nn.functional import cross_entropy

from tests import order_events
from tests.library.inside import ordered, written_at_once
from tests.library.loops.programs import Loop, die, killed
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits
from tests.recorded import events_of, of, sound
from tolariad.core import messages as m
from tolariad.library.loop_task import LoopMisused

BEGAN = order_events.acted(m.BeginStage)
STEPS = EPOCHS * STEPS_PER_EPOCH


class Staged(Loop):
    """A loop that announces before it, at an epoch's begin, in a step, after one, and after an epoch's batches."""

    def go(self):
        self.run.new_stage("fine-tuning")
        for epoch in self.run.epochs(EPOCHS):
            if epoch == 2:
                self.run.new_stage("harder batches")
            for inputs, targets in self.run.batches():
                number = STEPS_PER_EPOCH * (epoch - 1) + self.run.batch
                if number == 3:
                    self.run.new_stage("label smoothing on")
                loss = cross_entropy(self.model(inputs), targets, label_smoothing=0.1 * (number >= 3))
                self.run.step(loss)
                if number == 12:
                    self.run.new_stage("label smoothing on")
                self.after(number + 1)
            if epoch == 2:
                self.run.new_stage("augmentation")
            self.run.validated(accuracy=0.5)
        return self

    @property
    def bits(self):
        return bits(self.model)


def staged(folder, death=0):
    loop = Staged(folder, lambda step: die() if step == death else None, counted=False, draws=False).go()
    loop.folder = folder
    return loop


def last_pieces(folder):
    """Return the content of the last checkpoint, the detector's state among it."""
    return [(one.name, one.blake3) for one in of(events_of(folder), m.CheckpointCommitted)[-1].pieces]


ANNOUNCED = [
    (1, 1, "fine-tuning"),
    (4, 1, "label smoothing on"),
    (9, 2, "harder batches"),
    (14, 2, "label smoothing on"),
    (17, 2, "augmentation"),
]


def begun(folder):
    """Return the stages of a run, and that each has its number."""
    found = of(events_of(folder), BEGAN)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    return [(one.applied_before_step, one.outcome.epoch, one.order.why) for one in found]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm") / "run"
    loop = staged(folder)
    assert begun(folder) == ANNOUNCED
    return loop


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "deaths",
    [
        # A re-run has two steps at least, whether the checkpoint of epoch 1 was recorded before the death or not.
        *((2,), (3,), (4,), (8,), (9, 10), (11, 14), (13,), (12,), (16,), (17,), (20, 18)),
        *(("boundary:4",), ("gate:4",), ("boundary:12", "rerun:2"), ("publish:2",), ("step:13", "step:13")),
    ],
    ids=str,
)
def test_a_loop_that_announces_again_after_a_death_records_nothing_twice(tmp_path, calm, deaths):
    """Before and after each announcement, in mid-epoch, in a re-run.

    The last checkpoint has the bits of the undisturbed run's: weights, and the detector that began anew.
    """
    for death in deaths:
        if isinstance(death, int):
            killed(lambda death=death: staged(tmp_path / "run", death))
        else:
            killed(lambda: staged(tmp_path / "run"), death)
    again = staged(tmp_path / "run")
    sound(tmp_path / "run")

    assert again.run.result.phase == "completed"
    assert begun(tmp_path / "run") == ANNOUNCED
    assert again.bits == calm.bits
    assert last_pieces(tmp_path / "run") == last_pieces(calm.folder)


def test_an_announcement_that_a_rollback_undid_is_made_again(tmp_path, monkeypatch):
    """By the loop that runs again; it gets the number that it had, on the new branch."""
    written_at_once(monkeypatch.setattr)
    gone = []

    def back(step):
        if step == 15 and not gone:
            gone.append(ordered(loop.tolaria, m.Rollback(epoch=1)))

    loop = Staged(tmp_path / "run", back, counted=False, draws=False)
    loop.go()
    events = events_of(tmp_path / "run")
    (went,) = of(events, m.RolledBack)
    found = [(one.number, one.applied_before_step, one.order.why) for one in of(events, BEGAN)]
    since = [one for one in of(events, BEGAN) if one.wall > went.wall]

    assert went.step == STEPS_PER_EPOCH
    assert [one for one in found if one[1] > went.step + 1 and one[1] < 16] == [(4, 14, "label smoothing on")] * 2
    assert [(one.applied_before_step, one.order.why) for one in since] == [(b, w) for b, _, w in ANNOUNCED[2:]]
    assert loop.run.result.phase == "completed"


def test_a_stage_of_a_program_that_was_edited_begins_where_it_runs(tmp_path):
    """It was stopped at step 10, and announces before the loop now. The third start announces it again."""

    def stop(loop_):
        if loop_.step == 10:
            loop_.run.stop()

    Loop(tmp_path / "run", stop, counted=False, draws=False).go()
    for _ in range(2):
        loop = Loop(tmp_path / "run", lambda one: one.run.stop() if one.step == 2 else None, counted=False, draws=False)
        loop.run.new_stage("another loss")
        loop.go()

    assert begun(tmp_path / "run") == [(11, 2, "another loss")]


@pytest.mark.parametrize("why", ["", "  ", None, 3, "x" * 5000])
def test_a_text_that_says_nothing_is_refused(tmp_path, why):
    """At once, in the loop's own line."""
    loop = Loop(tmp_path / "run", lambda one: one.run.new_stage(why), counted=False, draws=False)

    with pytest.raises(LoopMisused, match="new_stage"):
        loop.run.new_stage(why)
    with pytest.raises(LoopMisused, match="new_stage"):
        loop.go()
