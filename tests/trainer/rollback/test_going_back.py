"""An order of the abandoned branch is neither started nor finished after the rollback."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest

from tests.trainer.conftest import FakeDaemon
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.storage.verify import read_manifest
from tolariad.trainer import loop
from tolariad.trainer.checkpoints import save
from tolariad.trainer.rollback import snapshots

LEAVES = 5
EARLIER = 2
RING = m.Ring(2, 8 << 20)


@dataclasses.dataclass
class Leaving(FakeDaemon):
    """Step 5 becomes durable when the trainer is at the next gate; then these orders and a rollback to the start."""

    before: tuple[Any, ...] = ()
    at_two: tuple[Any, ...] = ()
    done: m.RolledBackReport | None = None
    sent: bool = False

    def _answer(self, report: Any) -> None:
        match report:
            case m.RollbackPreparedReport():
                self.end.send(m.CommitRollback(rollback="r0001"))
            case m.RolledBackReport():
                self.done, self.hold_durable_after = report, None
                self.steps = {n: one for n, one in self.steps.items() if n <= report.step}
                self.epoch_started = 0
            case m.StepReport(step=step):
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
        ref = m.CheckpointRef(id=start.id, step=0, epoch=1, batch=0, manifest=start.manifest)
        self.end.send(m.PrepareRollback(rollback="r0001", checkpoint=ref, tier=m.Tier.FULL))

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
    daemon = left(m.TakeCheckpoint(id="c000007", reason=m.CheckpointReason.ORDERED, branch=0))

    assert [(one.id, one.why) for one in daemon.of(m.CheckpointFailedReport)] == [("c000007", "rollback r0001")]
    assert "c000007" not in {one.id for one in daemon.committed}
    assert not (daemon.run_dir / "checkpoints" / "c000007").exists()


def test_the_order_to_give_up_of_a_rollback_that_is_done_ends_nothing_that_is_ordered_after_it(left, monkeypatch):
    """The order came with the rollback and must not be carried out after it."""
    plain, ordered = Leaving._answer, []

    def answer(daemon, report):
        plain(daemon, report)
        if isinstance(report, m.RolledBackReport):
            ordered.append(m.TakeCheckpoint(id="c000008", reason=m.CheckpointReason.ORDERED, branch=1))
            daemon.end.send(ordered[0])

    monkeypatch.setattr(Leaving, "_answer", answer)
    daemon = left(
        m.TakeCheckpoint(id="c000007", reason=m.CheckpointReason.ORDERED, branch=0),
        m.AbortCheckpoints(beyond_step=0, why="a rollback began"),
    )
    written = {one.id: one for one in daemon.committed}
    manifest = read_manifest(daemon.run_dir / "checkpoints" / "c000008", written["c000008"].manifest)

    assert [one.id for one in daemon.of(m.CheckpointFailedReport)] == ["c000007"]
    assert (manifest.branch, manifest.parent_checkpoint_id) == (1, daemon.committed[0].id)


def test_what_is_being_written_of_a_later_step_is_given_up(left, monkeypatch):
    """It is captured at step 2; its writer waits until the rollback is done."""
    plain, daemons = loop.Trainer._go_back, []

    def go_back(trainer):
        plain(trainer)
        daemons.append(trainer._saver._job.aborted)

    monkeypatch.setattr(loop.Trainer, "_go_back", go_back)
    _hold_the_writer(monkeypatch, lambda: bool(daemons))
    daemon = left(at_two=(m.TakeCheckpoint(id="c000007", reason=m.CheckpointReason.ORDERED, branch=0),))

    assert daemons == ["rollback r0001"]
    assert [one.id for one in daemon.of(m.CheckpointFailedReport)] == ["c000007"]
    assert daemon.committed[-1].id == "end"


def _hold_the_writer(monkeypatch, may_go):
    """All but the first and the last are given up."""
    plain = save._Job.tick

    def tick(job):
        wait_for(lambda: job.order.reason is not m.CheckpointReason.ORDERED or may_go())
        plain(job)

    monkeypatch.setattr(save._Job, "tick", tick)


def test_a_snapshot_that_waited_for_the_next_boundary_is_given_up(left):
    """As for a checkpoint: it would be recorded as of the abandoned branch and be unusable."""
    daemon = left(m.UseRing(ring=RING), m.TakeSnapshot(id="s000007", slot=1))

    assert [(one.id, one.why) for one in daemon.of(m.SnapshotFailedReport)] == [("s000007", "rollback r0001")]
    assert daemon.of(m.SnapshotTakenReport) == []


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
    daemon = left(at_two=(m.UseRing(ring=RING), m.TakeSnapshot(id="s000007", slot=1)))

    assert [(one.id, one.why) for one in daemon.of(m.SnapshotFailedReport)] == [("s000007", "rollback r0001")]
    assert daemon.of(m.SnapshotTakenReport) == []
