"""The script of a re-run is read beside the kernel's thread, which keeps answering."""

from __future__ import annotations

import threading

import msgspec
import pytest

from tests.core.simulate import environment
from tests.kernel.rig import SOON_S, Rig
from tolariad.core import messages as m
from tolariad.core.decision import Accepted
from tolariad.kernel import script as script_module


class Slow:
    """Replaces the reading: it reports its begin and ends on demand."""

    def __init__(self, monkeypatch):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._cut = script_module.q.script_from_journal
        monkeypatch.setattr(script_module.q, "script_from_journal", self)

    def __call__(self, events, checkpoint, *more):
        if checkpoint is None:
            return self._cut(events, None, *more)
        self.begun.set()
        assert self.go_on.wait(SOON_S)
        if self.error is not None:
            raise self.error
        return self._cut(events, checkpoint, *more)


@pytest.fixture
def slow(monkeypatch):
    return Slow(monkeypatch)


@pytest.fixture
def restarted(tmp_path):
    """A run with three steps after its checkpoint, and the trainer that is to re-run them."""
    rig = Rig(tmp_path / "journal")
    rig.until_training()
    for number in range(1, 4):
        rig.step(number)
    rig.wait(lambda: rig.kernel.durable.progress.step == 3)
    rig.gone()
    rig.wait(lambda: rig.events(m.TrainerDied))
    rig.spawn().report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    yield rig
    rig.close()


def steps_of(rig) -> list[int]:
    _, attachment = rig.order(m.TrainFrom)
    return [step.step for step in msgspec.msgpack.decode(attachment, type=m.Script).steps]


def test_orders_are_answered_while_a_script_is_cut(slow, restarted):
    """A note is durable and acknowledged; the trainer gets its script when it is ready."""
    assert slow.begun.wait(SOON_S)
    assert isinstance(restarted.command(m.Note(text="meanwhile")), Accepted)
    assert restarted.trainer.order() is None
    slow.go_on.set()

    assert steps_of(restarted) == [1, 2, 3]


def test_a_script_for_a_trainer_that_is_gone_is_sent_to_nobody(slow, restarted):
    """The next trainer gets a script of its own, once."""
    assert slow.begun.wait(SOON_S)
    restarted.gone(2)
    restarted.wait(lambda: len(restarted.events(m.TrainerDied)) == 2)
    restarted.spawn().report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    slow.go_on.set()

    assert steps_of(restarted) == [1, 2, 3]
    assert isinstance(restarted.command(m.Note(text="behind")), Accepted)
    assert restarted.trainer.order() is None


def test_a_journal_that_cannot_be_cut_is_the_recorders_failure(slow, restarted):
    """The recorder freezes and answers with the reason, as for any other defect."""
    slow.error = RuntimeError("the journal is not what it was")
    slow.go_on.set()
    restarted.wait(lambda: restarted.kernel.failure)

    assert "not what it was" in restarted.kernel.failure
    assert isinstance(restarted.command(m.Note(text="x")), m.Refusal)


def test_a_kernel_ends_while_a_script_is_cut(slow, restarted):
    """A script that is complete after that is dropped."""
    assert slow.begun.wait(SOON_S)
    ended = threading.Thread(target=restarted.kernel.stop)
    ended.start()
    slow.go_on.set()
    ended.join(SOON_S)

    assert not ended.is_alive()
    assert restarted.kernel.failure is None
    restarted.close = restarted.journal.close
