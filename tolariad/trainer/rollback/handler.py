"""A rollback in the running trainer: PREPARE reads and verifies the target, COMMIT copies it, CONFIRM compares it.

In each phase the participants come first, in their order, and the training last. Promises: PREPARE changes nothing, so
an aborted rollback leaves even a half-made step as it was. COMMIT unwinds whatever the trainer was doing. Nothing is
reported as restored unless it was compared bit for bit. The fast tier reads no file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.checkpoints.loaded import Loaded
from tolariad.trainer.checkpoints.restore import check_target, load, restore
from tolariad.trainer.orders import IDLE_S
from tolariad.trainer.rollback.confirm import Confirmation, differing
from tolariad.trainer.rollback.participants import TRAINING, ParticipantRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.storage.snapshot_slot import Table
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders import Link
    from tolariad.trainer.rollback.snapshot_slots import Slots
    from tolariad.trainer.setup import Setup


class RollbackCommitted(BaseException):
    """Unwinds the trainer at COMMIT. It is no Exception, so that `except Exception` in a task does not catch it."""


class RollbackUnconfirmed(RuntimeError):
    """The restored state differs from the prepared one. This process must not train any more."""


class _Spans:
    """Times of the consecutive parts of one rollback, from its creation on."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(m.RollbackSpans.__struct_fields__, 0.0)
        self._last = time.perf_counter()

    def done(self, part: str) -> None:
        """End a part, or the turn of a participant: it took the time since the end of the one before it."""
        now = time.perf_counter()
        self._seconds[part if part in self._seconds else "rest"] += now - self._last
        self._last = now

    @property
    def taken(self) -> m.RollbackSpans:
        """Seconds of each part."""
        return m.RollbackSpans(**self._seconds)


class _Prepared(NamedTuple):
    """A target that was read and verified. `table` is that of the snapshot's slot; None for a checkpoint."""

    order: m.PrepareRollback
    loaded: Loaded
    table: Table | None
    spans: _Spans


class Committed(NamedTuple):
    """A rollback that is done. `parent`: the checkpoint that this state comes from, or descends from."""

    position: Position
    order: m.PrepareRollback
    report: m.RolledBackReport
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
        self._inbox.register(m.PrepareRollback, self.obey)
        self._inbox.register(m.CommitRollback, self.obey)
        self._inbox.register(m.AbortRollback, self.obey)

    def obey(self, order: m.PrepareRollback | m.CommitRollback | m.AbortRollback) -> None:
        """Obey an order. The trainer calls this at every wait, the gate included. Raises RollbackCommitted."""
        match order:
            case m.PrepareRollback():
                self._prepare(order)
            case m.AbortRollback():
                self._prepared = None
                self.given_up += 1
                self._setup.participants.abort(self._limit_s(m.Tier.FAST))
            case m.CommitRollback():
                if self._prepared is not None and self._prepared.order.rollback == order.rollback:
                    raise RollbackCommitted

    def _prepare(self, order: m.PrepareRollback) -> None:
        """Read the target, verify it, check that it fits the model, and ask the participants. Changes nothing."""
        begun = time.perf_counter()
        self._reporter.report(m.RollbackHeardReport(rollback=order.rollback))
        self._reporter.beat(Activity.RESTORE)
        reached("rollback_prepare")
        try:
            self._prepared = self._read(order)
            loaded = self._prepared.loaded
            check_target(self._setup, loaded)
            self._prepared.spans.done("load")
            votes = self._setup.participants.prepare(loaded.participants, self._setup.device, self._limit_s(order.tier))
        except (CheckpointUnusable, ParticipantRefused) as error:
            self._prepared = None
            self._reporter.report(_refusal(order, error, restored=self._is_overwritten))
            return
        report = m.RollbackPreparedReport(
            rollback=order.rollback,
            participants=(*votes.agreed, TRAINING),
            seconds=time.perf_counter() - begun,
            abstained=votes.abstained,
            checkpoint=order.checkpoint.id,
        )
        self._reporter.report(report)

    def _limit_s(self, tier: m.Tier) -> float:
        limits = self._setup.settings.rollback
        return limits.fast_path_timeout_ms / 1e3 if tier is m.Tier.FAST else limits.full_path_timeout_s

    def _read(self, order: m.PrepareRollback) -> _Prepared:
        """Return the target. For a snapshot only its table is verified here; its tensors are when they are restored.

        Raises CheckpointUnusable.
        """
        ref, spans = order.checkpoint, _Spans()
        if ref.slot is None:
            folder, rank = self._checkpoints / ref.id, self._setup.state_rank
            loaded = load(folder, ref.manifest, lambda: self._reporter.beat(Activity.RESTORE), rank)
            return _Prepared(order, loaded, None, spans)
        slots = self._slots()
        if slots is None:
            raise CheckpointUnusable(f"slot {ref.slot}", "this trainer has no snapshot memory")
        held = slots.read(ref.slot, ref.manifest)
        return _Prepared(order, held.loaded, held.table, spans)

    def commit(self) -> Committed:
        """Copy the prepared target into the live tensors and compare. Raises RollbackUnconfirmed.

        If a snapshot differs from its record after the copy, or a participant raises, report that, wait for the next
        target, and restore it.
        """
        while True:
            if self._prepared is None:
                raise RollbackUnconfirmed("a rollback was committed that was not prepared")
            prepared, self._prepared = self._prepared, None
            found = self._carry_out(prepared)
            self._is_overwritten = not isinstance(found, Committed)
            if isinstance(found, Committed):
                return found
            if self._setup.place.ranks > 1:
                # The others go on from the target. So all start again, and begin there.
                raise RollbackUnconfirmed(f"this rank could not go back with the others: {found.file}: {found.why}")
            self._reporter.report(found)
            self._wait_for_commit()

    def _wait_for_commit(self) -> None:
        """Wait until another target is committed, or the process is killed. The live state is invalid meanwhile."""
        try:
            while True:
                self._inbox.wait(Activity.RESTORE, IDLE_S)
        except RollbackCommitted:
            return

    def _carry_out(self, prepared: _Prepared) -> Committed | m.RollbackRefusedReport:
        """Do COMMIT and CONFIRM. Return the result, or the report of what failed. Raises RollbackUnconfirmed."""
        self._reporter.beat(Activity.RESTORE)
        order, spans, confirmation = prepared.order, prepared.spans, Confirmation()
        begun = time.perf_counter()
        spans.done("coordination")
        limit_s = self._limit_s(order.tier)
        copy = None if prepared.table is None else confirmation.copy
        try:
            position = restore(self._setup, prepared.loaded, copy, spans.done, limit_s=limit_s)
        except ParticipantRefused as refused:
            return _refusal(order, refused, restored=True)
        copied = time.perf_counter()
        reached("rollback_commit")
        self._reporter.beat(Activity.RESTORE)
        if prepared.table is None:
            for name in differing(self._setup, prepared.loaded, position):
                raise RollbackUnconfirmed(
                    f"{name} is not what checkpoint {order.checkpoint.id} holds after it was restored"
                )
        else:
            for name in confirmation.differing(self._setup, position, prepared.table):
                differs = CheckpointUnusable(name, "differs from its recorded digest after it was restored")
                return _refusal(order, differs, restored=True)
        reached("rollback_confirm")
        report = m.RolledBackReport(
            rollback=order.rollback,
            step=position.step,
            commit_s=copied - begun,
            confirm_s=time.perf_counter() - copied,
            rates=self._setup.standing,
            spans=spans.taken,
            late=self._setup.participants.late,
        )
        return Committed(position, order, report, prepared.table.parent if prepared.table else order.checkpoint.id)


def _refusal(
    order: m.PrepareRollback, error: CheckpointUnusable | ParticipantRefused, *, restored: bool
) -> m.RollbackRefusedReport:
    """Return the report that the target cannot be used. `restored`: the live state is invalid by now."""
    if isinstance(error, ParticipantRefused):
        file, why, participant = f"participant {error.participant}", str(error), error.participant
    else:
        file, why, participant = error.file, error.why, ""
    return m.RollbackRefusedReport(
        rollback=order.rollback,
        file=file,
        why=why,
        unfit=isinstance(error, CheckpointUnfit),
        restored=restored,
        participant=participant,
        checkpoint=order.checkpoint.id,
    )


def standing_at(order: m.TrainFrom, target: m.CheckpointRef, position: Position) -> m.TrainFrom:
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
        step_to_keep=0,
        # The report of the rollback contains the rates already.
        tell_rates=False,
    )
