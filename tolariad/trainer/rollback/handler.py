"""A rollback in the running trainer: PREPARE reads and verifies the target, COMMIT copies it, CONFIRM compares it.

Promises: PREPARE changes nothing, so an aborted rollback leaves even a half-made step as it was. COMMIT unwinds
whatever the trainer was doing. Nothing is reported as restored unless it was compared bit for bit.
"""

from __future__ import annotations

import time
from dataclasses import replace as with_values
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core.rollback import words as rb
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.checkpoints.loaded import Loaded
from tolariad.trainer.checkpoints.restore import check_target, load, restore, taken_apart
from tolariad.trainer.orders import IDLE_S
from tolariad.trainer.rollback.confirm import Confirmation, differing
from tolariad.trainer.rollback.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.core.checkpoints.words import CheckpointRef, TrainFrom
    from tolariad.storage.slot import Table
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders import Link
    from tolariad.trainer.rollback.slots import Slots
    from tolariad.trainer.setup import Setup

PARTICIPANTS: Final = ("training",)


class RollbackCommitted(BaseException):
    """Unwinds the trainer at COMMIT. It is no Exception, so that `except Exception` in a task does not catch it."""


class RollbackUnconfirmed(RuntimeError):
    """The restored state differs from the prepared one. This process must not train any more."""


class _Prepared(NamedTuple):
    """A target that was read and verified. `table`: of a snapshot; None for a checkpoint."""

    order: rb.PrepareRollback
    loaded: Loaded
    table: Table | None
    spans: Spans


class Committed(NamedTuple):
    """A rollback that is done. `parent`: the checkpoint that this state comes from, or descends from."""

    position: Position
    order: rb.PrepareRollback
    report: rb.RolledBackReport
    parent: str


class RollbackHandler:
    """The trainer's part of every rollback. `slots` returns the snapshot arena, or None if there is none."""

    def __init__(self, setup: Setup, link: Link, checkpoints: Path, slots: Callable[[], Slots | None]) -> None:
        self._setup = setup
        self._reporter, self._inbox = link.reporter, link.inbox
        self._checkpoints = checkpoints
        self._slots = slots
        self._prepared: _Prepared | None = None
        # How many rollbacks were aborted.
        self.given_up = 0
        # True after a restored target differed from its record: the live state is invalid until another target is
        # restored.
        self._is_overwritten = False
        self._inbox.register(rb.PrepareRollback, self.obey)
        self._inbox.register(rb.CommitRollback, self.obey)
        self._inbox.register(rb.AbortRollback, self.obey)

    def obey(self, order: rb.PrepareRollback | rb.CommitRollback | rb.AbortRollback) -> None:
        """Obey an order. The trainer calls this at every wait, the gate included. Raises RollbackCommitted."""
        match order:
            case rb.PrepareRollback():
                self._prepare(order)
            case rb.AbortRollback():
                self._prepared = None
                self.given_up += 1
            case rb.CommitRollback():
                if self._prepared is not None and self._prepared.order.rollback == order.rollback:
                    raise RollbackCommitted

    def _prepare(self, order: rb.PrepareRollback) -> None:
        """Read the target, verify it, and check that it fits the model. Changes nothing."""
        begun = time.perf_counter()
        self._reporter.report(rb.RollbackHeardReport(rollback=order.rollback))
        self._reporter.beat(Activity.RESTORE)
        reached("rollback_prepare")
        try:
            self._prepared = self._read(order)
            check_target(self._setup, self._prepared.loaded)
            self._prepared.spans.done("load")
        except CheckpointUnusable as unusable:
            self._prepared = None
            refused = rb.RollbackRefusedReport(
                rollback=order.rollback,
                file=unusable.file,
                why=unusable.why,
                unfit=isinstance(unusable, CheckpointUnfit),
                restored=self._is_overwritten,
            )
            self._reporter.report(refused)
            return
        report = rb.RollbackPreparedReport(
            rollback=order.rollback, participants=PARTICIPANTS, seconds=time.perf_counter() - begun
        )
        self._reporter.report(report)

    def _read(self, order: rb.PrepareRollback) -> _Prepared:
        """Return the target. For a snapshot only its table is verified here; its tensors are when they are restored.

        Raises CheckpointUnusable.
        """
        ref, spans = order.checkpoint, Spans()
        if ref.slot is None:
            loaded = load(self._checkpoints / ref.id, ref.manifest, lambda: self._reporter.beat(Activity.RESTORE))
            return _Prepared(order, loaded, None, spans)
        slots = self._slots()
        if slots is None:
            raise CheckpointUnusable(f"slot {ref.slot}", "this trainer has no snapshot memory")
        held = slots.read(ref.slot, ref.manifest)
        loaded = with_values(taken_apart(held.snapshot), acted=held.table.acted)
        return _Prepared(order, loaded, held.table, spans)

    def commit(self) -> Committed:
        """Copy the prepared target into the live tensors and compare. Raises RollbackUnconfirmed.

        If a snapshot differs from its record after the copy, report that, wait for the next target, and restore it.
        """
        while True:
            if self._prepared is None:
                raise RollbackUnconfirmed("a rollback was committed that was not prepared")
            prepared, self._prepared = self._prepared, None
            found = self._from_disk(prepared) if prepared.table is None else self._from_memory(prepared, prepared.table)
            self._is_overwritten = not isinstance(found, Committed)
            if isinstance(found, Committed):
                return found
            why = "differs from its recorded digest after it was restored"
            refused = rb.RollbackRefusedReport(rollback=prepared.order.rollback, file=found, why=why, restored=True)
            self._reporter.report(refused)
            self._wait_for_commit()

    def _wait_for_commit(self) -> None:
        """Wait until another target is committed, or the process is killed. The live state is invalid meanwhile."""
        try:
            while True:
                self._inbox.wait(Activity.RESTORE, IDLE_S)
        except RollbackCommitted:
            return

    def _from_memory(self, prepared: _Prepared, table: Table) -> Committed | str:
        """Do COMMIT and CONFIRM from memory. Return the result, or the name of the first difference."""
        begun = self._begin(prepared)
        confirmation = Confirmation()
        position = restore(self._setup, prepared.loaded, confirmation.copy, prepared.spans.done)
        copied = time.perf_counter()
        reached("rollback_commit")
        self._reporter.beat(Activity.RESTORE)
        for name in confirmation.differing(self._setup, position, table):
            return name
        reached("rollback_confirm")
        return self._done(prepared, position, begun, copied, table.parent)

    def _from_disk(self, prepared: _Prepared) -> Committed:
        begun = self._begin(prepared)
        position = restore(self._setup, prepared.loaded, done=prepared.spans.done)
        copied = time.perf_counter()
        reached("rollback_commit")
        self._reporter.beat(Activity.RESTORE)
        for name in differing(self._setup, prepared.loaded, position):
            id_ = prepared.order.checkpoint.id
            raise RollbackUnconfirmed(f"{name} is not what checkpoint {id_} holds after it was restored")
        reached("rollback_confirm")
        return self._done(prepared, position, begun, copied, prepared.order.checkpoint.id)

    def _begin(self, prepared: _Prepared) -> float:
        self._reporter.beat(Activity.RESTORE)
        begun = time.perf_counter()
        prepared.spans.done("coordination")
        return begun

    def _done(self, prepared: _Prepared, position: Position, begun: float, copied: float, parent: str) -> Committed:
        report = rb.RolledBackReport(
            rollback=prepared.order.rollback,
            step=position.step,
            commit_s=copied - begun,
            confirm_s=time.perf_counter() - copied,
            rates=self._setup.standing,
            spans=prepared.spans.taken,
        )
        return Committed(position, prepared.order, report, parent)


def standing_at(order: TrainFrom, target: CheckpointRef, position: Position) -> TrainFrom:
    """Return the order to train from the target on. Epochs after the target are reported again."""
    before = position.epoch - 1
    return replace(
        order,
        checkpoint=target,
        durable_step=position.step,
        epoch_started=position.epoch if position.batch else before,
        epoch_validated=min(order.epoch_validated, before),
        epoch_finished=min(order.epoch_finished, before),
        epoch_to_keep=0,
        # The report of the rollback contains the rates already.
        tell_rates=False,
    )
