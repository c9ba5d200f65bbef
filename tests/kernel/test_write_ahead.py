"""P2 from outside: while a frame is being written, nothing shows that its events exist."""

from __future__ import annotations

import threading
import time

import pytest

from journal.files import Files
from tests.core.simulate import OPERATOR, environment
from tests.kernel.rig import SOON_S, Rig, written
from tolariad.core import messages as m

# Long enough to notice an answer that comes too early; such an answer takes microseconds.
LOOK_S = 0.1


class Held(Files):
    """A disk whose next write waits for the test, and reports that it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.there = threading.Event(), threading.Event()
        self.go.set()

    def hold(self) -> None:
        self.go.clear()
        self.there.clear()

    def pwrite(self, *args, **kwargs):
        if not self.go.is_set():
            self.there.set()
            assert self.go.wait(SOON_S)
        return super().pwrite(*args, **kwargs)


@pytest.fixture
def held(tmp_path):
    """A kernel with a trainer, and its disk."""
    files = Held()
    rig = Rig(tmp_path / "journal", files=files)
    rig.until_training()
    yield rig, files
    files.go.set()
    rig.close()


def test_an_order_is_neither_answered_nor_obeyed_nor_shown_while_its_event_is_being_written(held):
    """There is no answer, no order, no event and no new state; after the write there are all of them."""
    rig, files = held
    before, shown = rig.kernel.durable, len(rig.published)
    answers, answered = [], threading.Event()
    files.hold()
    rig.kernel.submit(
        m.CommandReceived(command=m.Pause(), actor=OPERATOR), lambda given: (answers.append(given), answered.set())
    )
    assert files.there.wait(SOON_S)

    assert not answered.wait(LOOK_S)
    assert rig.trainer.order() is None
    assert rig.kernel.durable is before
    assert len(rig.published) == shown

    files.go.set()
    assert answered.wait(SOON_S)
    assert rig.order(m.Hold)[0].cause == answers[0].seq
    assert rig.kernel.durable.seq == answers[0].seq


def test_a_reported_step_opens_no_gate_while_it_is_being_written(held):
    """The durable number that the trainer reads does not change until the frame is on disk."""
    rig, files = held
    last = rig.step(1)
    rig.wait(lambda: rig.trainer.page.durable >= last)
    files.hold()
    number = rig.step(2)
    assert files.there.wait(SOON_S)

    time.sleep(LOOK_S)
    assert rig.trainer.page.durable == last < number
    assert rig.kernel.durable.progress.step == 1

    files.go.set()
    rig.wait(lambda: rig.trainer.page.durable >= number)


def test_the_first_update_waits_until_its_checkpoint_is_committed_on_disk(tmp_path):
    """The page stays frozen while CheckpointCommitted is being written, although the files exist."""
    files = Held()
    rig = Rig(tmp_path / "journal", files=files)
    trainer = rig.spawn()
    trainer.report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    rig.order(m.TrainFrom)
    id_ = rig.order(m.TakeCheckpoint)[0].id
    trainer.report(m.TrainingStartedReport(step=0))
    rig.wait(lambda: rig.events(m.TrainingStarted))
    files.hold()
    trainer.report(written(id_, 0))
    assert files.there.wait(SOON_S)

    time.sleep(LOOK_S)
    assert trainer.page.frozen

    files.go.set()
    rig.wait(lambda: not trainer.page.frozen)
    rig.close()
