"""The target of a rollback: a checkpoint on disk, or a snapshot in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.catalogue_slice import CatalogueEntry
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import HasRollbacks, OpenRollback
from tolariad.core.snapshots import words as sn
from tolariad.core.snapshots.ask import Restorable
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.trainer.slice import HasTrainer

# After this many returns a further one does not help. An operator's emergency then goes further back. Returns are
# counted by the target's step: a checkpoint taken again on the way from an older one is the same state.
RETURNS_MAX: Final = 2


class UsableSlices(HasCheckpoints, HasTrainer, Protocol):
    """The slices with the checkpoints, and the trainer whose model they must fit."""


class TargetSlices(HasCheckpoints, HasTrainer, HasRollbacks, HasSnapshots, Protocol):
    """The slices with every possible target, and how often the run went back to each."""


def usable_targets(state: UsableSlices) -> tuple[CatalogueEntry, ...]:
    """Return the checkpoints that may be gone back to, oldest first."""
    return tuple(one for one in state.checkpoints.catalogue if one.is_target and not _is_unfit(state, one))


def _is_unfit(state: UsableSlices, one: CatalogueEntry) -> bool:
    """Return whether it has another shape than the model in training; a new trainer builds the model again."""
    return state.trainer.alive and one.unfit_incarnation == state.trainer.incarnation


def find_target(state: TargetSlices, command: rb.Rollback) -> Restorable | str:
    """Return the target of an order, or a sentence why there is none.

    A snapshot only if the order asks for one or names it.
    """
    named = state.snapshots.find(command.to)
    if named is not None:
        return named
    if command.tier is rb.Tier.FAST and not command.to:
        held = [one for one in state.snapshots.promoted if _is_within(one, command)]
        if held:
            return held[-1]
    return _checkpoint(state, command)


def _is_within(one: Restorable, command: rb.Rollback) -> bool:
    """Return whether the place is at or before the one that the order names."""
    if command.epoch is not None:
        return (one.epoch, one.batch) <= (command.epoch + 1, 0)
    return command.step is None or one.step <= command.step


def _checkpoint(state: UsableSlices, command: rb.Rollback) -> CatalogueEntry | str:
    if command.to:
        known = next((one for one in state.checkpoints.catalogue if one.id == command.to), None)
        if known is None:
            return f"there is no checkpoint {command.to!r}; `tolaria checkpoints` lists them"
        if not known.is_target:
            what = "failed its verification" if known.rejected else "lies on a branch that was abandoned"
            what = f"is in quarantine ({known.quarantined})" if known.quarantined else what
            return f"checkpoint {known.id} {what}; `tolaria checkpoints` lists the others"
        if _is_unfit(state, known):
            return (
                f"checkpoint {known.id} is of another shape than the model that trains now. A new trainer can use it: "
                "give the order `tolaria emergency critical`, then this order again"
            )
        return known
    targets = tuple(one for one in usable_targets(state) if _is_within(one, command))
    if command.epoch is None and command.step is None:
        targets = _proven(targets)
    if not targets:
        return "no checkpoint that can be used is as old as that; `tolaria checkpoints` lists them"
    return targets[-1]


def automatic_target(state: TargetSlices, tier: rb.Tier) -> Restorable | None:
    """Return the newest target that the run did not go back to too often: of the tier, else of the full one; else None.

    A target newer than the newest promoted one may contain the fault. If none is promoted yet, all count.
    """
    visits = dict(state.rollbacks.places)
    return _newest(state, tier, lambda one: visits.get(one.step, 0) < RETURNS_MAX)


def newest_target(state: TargetSlices, tier: rb.Tier, until: int | None = None) -> Restorable | None:
    """Return the newest proven target of the tier, else of the full one, at or before step `until`, or None.

    The run uses this for its own rollbacks. It goes back no further than necessary: a fault that rollbacks cannot cure
    would otherwise cost all checkpoints.
    """
    return _newest(state, tier, lambda one: until is None or one.step <= until)


def _newest(state: TargetSlices, tier: rb.Tier, accept: Callable[[Restorable], bool]) -> Restorable | None:
    """Return the newest accepted snapshot if the tier is the fast one, else the newest accepted checkpoint, or None."""
    held: tuple[Restorable, ...] = state.snapshots.promoted if tier is rb.Tier.FAST else ()
    for places in (held, _proven(usable_targets(state))):
        if accepted := [one for one in places if accept(one)]:
            return accepted[-1]
    return None


def _proven(held: tuple[CatalogueEntry, ...]) -> tuple[CatalogueEntry, ...]:
    newest = max((number for number, one in enumerate(held) if one.promoted), default=len(held))
    return held[: newest + 1]


def target_instead(state: TargetSlices, opened: OpenRollback, until: int) -> CatalogueEntry | None:
    """Return the target that replaces an unusable one: the newest checkpoint at or before step `until`, or None.

    None if the order named its target. The run's own rollbacks avoid targets that they went back to too often.
    """
    if opened.tier is rb.Tier.FAST:
        return target_on_disk(state, until)
    if opened.otherwise is rb.RefusalPolicy.STAY:
        return None
    visits = dict(state.rollbacks.places) if opened.otherwise is rb.RefusalPolicy.HALT else {}
    older = [one for one in usable_targets(state) if one.step <= until and one.id != opened.checkpoint]
    return next((one for one in reversed(older) if visits.get(one.step, 0) < RETURNS_MAX), None)


def target_on_disk(state: UsableSlices, step: int) -> CatalogueEntry | None:
    """Return the newest checkpoint that may be gone back to, at or before `step`, or None."""
    older = [one for one in usable_targets(state) if one.step <= step]
    return older[-1] if older else None


def rejected(
    state: TargetSlices, id_: str, report: rb.RollbackRefusedReport | ck.CheckpointUnusableReport, context: str = ""
) -> sn.SnapshotRejected | ck.CheckpointRejected | ck.CheckpointUnfit:
    """Return the event for a target that failed its verification, or does not fit the model.

    `context`: the execution context in which that model was built; "" if the reason holds for this trainer only.
    """
    file, why = report.file, report.why
    if state.snapshots.find(id_) is not None:
        return sn.SnapshotRejected(id=id_, why=f"{file}: {why}")
    if report.unfit:
        incarnation = state.trainer.incarnation
        return ck.CheckpointUnfit(id=id_, file=file, why=why, incarnation=incarnation, context=context)
    return ck.CheckpointRejected(id=id_, file=file, why=why)
