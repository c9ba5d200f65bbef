"""A rollback in the living trainer: the target's state is read and verified at PREPARE, copied at COMMIT, compared at CONFIRM.

Promises: PREPARE changes nothing, so a rollback that is aborted leaves even a half-made step as it was; COMMIT unwinds
whatever was going on, wherever the trainer stood; nothing is reported as restored that was not compared bit for bit.
It must not know: who ordered it, or which target is the right one.
"""

from __future__ import annotations

import time
from dataclasses import replace as with_values
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core.vocabulary import rollback as rb
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.checkpoints.restore import Loaded, check_fits, load, restore, taken_apart
from tolariad.trainer.orders import IDLE_S
from tolariad.trainer.rollback.confirm import Confirmation, differing
from tolariad.trainer.rollback.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.core.vocabulary.checkpoints import CheckpointRef, TrainFrom
    from tolariad.storage.slot import Table
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders import Link
    from tolariad.trainer.rollback.slots import Slots
    from tolariad.trainer.setup import Setup

PARTICIPANTS: Final = ("training",)


class RollbackCommitted(BaseException):
    """COMMIT: whatever is going on ends here. Not an Exception: a task's own `except Exception` must not swallow it."""


class RollbackUnconfirmed(RuntimeError):
    """What was restored is not what was prepared: this process is not to be trusted any more."""


class _Prepared(NamedTuple):
    """`table`: of a snapshot in memory; a checkpoint has none."""

    order: rb.PrepareRollback
    loaded: Loaded
    table: Table | None
    spans: Spans


class Committed(NamedTuple):
    """Where training stands now. `parent`: the checkpoint this state is of, or descends from."""

    position: Position
    order: rb.PrepareRollback
    report: rb.RolledBackReport
    parent: str


class RollbackHandler:
    """The trainer's part of every rollback. `slots`: where snapshots lie, None where there are none."""

    def __init__(self, setup: Setup, link: Link, checkpoints: Path, slots: Callable[[], Slots | None]) -> None:
        self._setup = setup
        self._reporter, self._inbox = link.reporter, link.inbox
        self._checkpoints = checkpoints
        self._slots = slots
        self._prepared: _Prepared | None = None
        # How many rollbacks were aborted.
        self.given_up = 0
        # A target was copied into what lives, and is not what was recorded: nothing of the run is of use before another is.
        self._is_overwritten = False
        self._inbox.register(rb.PrepareRollback, self.obey)
        self._inbox.register(rb.CommitRollback, self.obey)
        self._inbox.register(rb.AbortRollback, self.obey)

    def obey(self, order: rb.PrepareRollback | rb.CommitRollback | rb.AbortRollback) -> None:
        """At any wait, the gate's among them. Raises RollbackCommitted."""
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
        """Read and verify the target, and see whether it fits. Nothing of the run changes."""
        begun = time.perf_counter()
        self._reporter.report(rb.RollbackHeardReport(rollback=order.rollback))
        self._reporter.beat(Activity.RESTORE)
        reached("rollback_prepare")
        try:
            self._prepared = self._read(order)
            check_fits(self._setup, self._prepared.loaded)
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
        """The target. Of one in memory the table is compared; its tensors are, when they are restored.

        Raises CheckpointUnusable.
        """
        ref, spans = order.checkpoint, Spans()
        if ref.slot is None:
            loaded = load(self._checkpoints / ref.id, ref.manifest, lambda: self._reporter.beat(Activity.RESTORE))
            return _Prepared(order, loaded, None, spans)
        slots = self._slots()
        if slots is None:
            raise CheckpointUnusable(f"slot {ref.slot}", "this trainer has no memory for snapshots")
        held = slots.read(ref.slot, ref.manifest)
        loaded = with_values(taken_apart(held.snapshot), applied_cause=held.table.applied_cause)
        return _Prepared(order, loaded, held.table, spans)

    def commit(self) -> Committed:
        """Copy what was prepared into the live tensors and compare. Raises RollbackUnconfirmed.

        Where what was restored from memory is not what was recorded, that is told, and what is prepared next is restored.
        """
        while True:
            if self._prepared is None:
                raise RollbackUnconfirmed("a rollback was committed that was not prepared")
            prepared, self._prepared = self._prepared, None
            found = self._from_disk(prepared) if prepared.table is None else self._from_memory(prepared, prepared.table)
            self._is_overwritten = not isinstance(found, Committed)
            if isinstance(found, Committed):
                return found
            why = "is not what was recorded after it was restored"
            refused = rb.RollbackRefusedReport(rollback=prepared.order.rollback, file=found, why=why, restored=True)
            self._reporter.report(refused)
            self._wait_for_commit()

    def _wait_for_commit(self) -> None:
        """Nothing of the run is of use now: stand until another target is prepared and committed, or the process is ended."""
        try:
            while True:
                self._inbox.wait(Activity.RESTORE, IDLE_S)
        except RollbackCommitted:
            return

    def _from_memory(self, prepared: _Prepared, table: Table) -> Committed | str:
        """COMMIT and CONFIRM; or the name of what differs."""
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
        # Of the step that was going on: the next one must not add to them.
        self._setup.model.zero_grad(set_to_none=True)
        return begun

    def _done(self, prepared: _Prepared, position: Position, begun: float, copied: float, parent: str) -> Committed:
        report = rb.RolledBackReport(
            rollback=prepared.order.rollback,
            step=position.step,
            commit_s=copied - begun,
            confirm_s=time.perf_counter() - copied,
            rates=self._setup.rates.standing,
            spans=prepared.spans.taken,
        )
        return Committed(position, prepared.order, report, parent)


def standing_at(order: TrainFrom, target: CheckpointRef, position: Position) -> TrainFrom:
    """The order to train as it is from the target on: what was told of later epochs is told again."""
    before = position.epoch - 1
    return replace(
        order,
        checkpoint=target,
        durable_step=position.step,
        epoch_started=position.epoch if position.batch else before,
        epoch_validated=min(order.epoch_validated, before),
        epoch_finished=min(order.epoch_finished, before),
        epoch_to_keep=0,
        # This trainer's own report of the rollback does.
        tell_rates=False,
    )
