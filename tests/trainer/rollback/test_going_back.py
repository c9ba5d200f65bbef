"""An order of the abandoned branch is neither started nor finished after the rollback."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest

from tests.trainer.conftest import FakeDaemon
from tests.waiting import wait_for
from tolariad.core.checkpoints import words as ck
from tolariad.core.rollback import words as rb
from tolariad.core.snapshots import words as sn
from tolariad.core.steps import words as steps
from tolariad.storage.verify import read_manifest
from tolariad.trainer import loop
from tolariad.trainer.checkpoints import save
from tolariad.trainer.rollback import snapshots

LEAVES = 5
EARLIER = 2
RING = sn.Ring(2, 8 << 20)


@dataclasses.dataclass
class Leaving(FakeDaemon):
    """Step 5 becomes durable when the trainer is at the next gate; then these orders and a rollback to the start."""

    before: tuple[Any, ...] = ()
    at_two: tuple[Any, ...] = ()
    done: rb.RolledBackReport | None = None
    sent: bool = False

    def _answer(self, report: Any) -> None:
        match report:
            case rb.RollbackPreparedReport():
                self.end.send(rb.CommitRollback(rollback="r0001"))
            case rb.RolledBackReport():
                self.done, self.hold_durable_after = report, None
                self.steps = {n: one for n, one in self.steps.items() if n <= report.step}
                self.epoch_started = 0
            case steps.StepReport(step=step):
                super()._answer(report)
                if step == EARLIER and not self.sent:
                    self._send(self.at_two)
            case _:
                super()._answer(report)

    def at_the_gate(self, _: FakeDaemon) -> None:
        if self.sent or self.last_step != LEAVES or not self.end.page.waiting:
            return
        self.sent = True
        self._send(self.before)
        start = self.committed[0]
        ref = ck.CheckpointRef(id=start.id, step=0, epoch=1, batch=0, manifest=start.manifest)
        self.end.send(rb.PrepareRollback(rollback="r0001", checkpoint=ref, tier=rb.Tier.FULL))

    def _send(self, orders: tuple[Any, ...]) -> None:
        for order in orders:
            self.end.send(order)

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.reports if isinstance(one, kind)]


@pytest.fixture
def left(tmp_path, configured, monkeypatch):
    """Run with a rollback from step 5 to the start, with the given orders before it."""
    descriptor = os.memfd_create("ring")
    os.ftruncate(descriptor, RING.slots * RING.slot_bytes)
    plain = loop.SnapshotHandler
    monkeypatch.setattr(loop, "SnapshotHandler", lambda setup, _: plain(setup, descriptor))

    def make(*before, at_two=()):
        (tmp_path / "run").mkdir()
        daemon = Leaving(tmp_path / "run", 1, before=before, at_two=at_two, hold_durable_after=LEAVES)
        daemon.train_here(configured("digits", epochs=1), daemon.at_the_gate)
        assert daemon.done is not None
        assert daemon.done.step == 0
        return daemon

    yield make
    os.close(descriptor)


def test_a_checkpoint_that_waited_for_the_next_boundary_is_given_up(left):
    """It was ordered on branch 0; taken after the rollback it would be recorded as of that branch."""
    daemon = left(ck.TakeCheckpoint(id="c000007", reason=ck.CheckpointReason.ORDERED, branch=0))

    assert [(one.id, one.why) for one in daemon.of(ck.CheckpointFailedReport)] == [("c000007", "rollback r0001")]
    assert "c000007" not in {one.id for one in daemon.committed}
    assert not (daemon.run_dir / "checkpoints" / "c000007").exists()


def test_the_order_to_give_up_of_a_rollback_that_is_done_ends_nothing_that_is_ordered_after_it(left, monkeypatch):
    """The order came with the rollback and must not be carried out after it."""
    plain, ordered = Leaving._answer, []

    def answer(daemon, report):
        plain(daemon, report)
        if isinstance(report, rb.RolledBackReport):
            ordered.append(ck.TakeCheckpoint(id="c000008", reason=ck.CheckpointReason.ORDERED, branch=1))
            daemon.end.send(ordered[0])

    monkeypatch.setattr(Leaving, "_answer", answer)
    daemon = left(
        ck.TakeCheckpoint(id="c000007", reason=ck.CheckpointReason.ORDERED, branch=0),
        ck.AbortCheckpoints(beyond_step=0, why="a rollback began"),
    )
    written = {one.id: one for one in daemon.committed}
    manifest = read_manifest(daemon.run_dir / "checkpoints" / "c000008", written["c000008"].manifest)

    assert [one.id for one in daemon.of(ck.CheckpointFailedReport)] == ["c000007"]
    assert (manifest.branch, manifest.parent_checkpoint_id) == (1, daemon.committed[0].id)


def test_what_is_being_written_of_a_later_step_is_given_up(left, monkeypatch):
    """It is captured at step 2; its writer waits until the rollback is done."""
    plain, daemons = loop.Trainer._go_back, []

    def go_back(trainer):
        plain(trainer)
        daemons.append(trainer._saver._job.aborted)

    monkeypatch.setattr(loop.Trainer, "_go_back", go_back)
    _hold_the_writer(monkeypatch, lambda: bool(daemons))
    daemon = left(at_two=(ck.TakeCheckpoint(id="c000007", reason=ck.CheckpointReason.ORDERED, branch=0),))

    assert daemons == ["rollback r0001"]
    assert [one.id for one in daemon.of(ck.CheckpointFailedReport)] == ["c000007"]
    assert daemon.committed[-1].id == "end"


def _hold_the_writer(monkeypatch, may_go):
    """All but the first and the last are given up."""
    plain = save._Job.tick

    def tick(job):
        wait_for(lambda: job.order.reason is not ck.CheckpointReason.ORDERED or may_go())
        plain(job)

    monkeypatch.setattr(save._Job, "tick", tick)


def test_a_snapshot_that_waited_for_the_next_boundary_is_given_up(left):
    """As for a checkpoint: it would be recorded as of the abandoned branch and be unusable."""
    daemon = left(sn.UseRing(ring=RING), sn.TakeSnapshot(id="s000007", slot=1))

    assert [(one.id, one.why) for one in daemon.of(sn.SnapshotFailedReport)] == [("s000007", "rollback r0001")]
    assert daemon.of(sn.SnapshotTakenReport) == []


def test_a_snapshot_of_a_later_step_whose_thread_is_at_work_is_told_of_as_given_up(left, monkeypatch):
    """It is copied at step 2 and hashed in the background until the rollback is done."""
    gone = threading.Event()
    plain, finish = loop.Trainer._go_back, snapshots.SnapshotHandler._finish

    def go_back(trainer):
        plain(trainer)
        gone.set()

    def waits(desk, *arguments):
        assert gone.wait(30)
        finish(desk, *arguments)

    monkeypatch.setattr(loop.Trainer, "_go_back", go_back)
    monkeypatch.setattr(snapshots.SnapshotHandler, "_finish", waits)
    daemon = left(at_two=(sn.UseRing(ring=RING), sn.TakeSnapshot(id="s000007", slot=1)))

    assert [(one.id, one.why) for one in daemon.of(sn.SnapshotFailedReport)] == [("s000007", "rollback r0001")]
    assert daemon.of(sn.SnapshotTakenReport) == []
