"""The target of a rollback: a checkpoint on disk, or a snapshot in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.queries.snapshots import Restorable

# After this many returns a further one does not help. An operator's emergency then goes further back. Returns are
# counted by the target's step: a checkpoint taken again on the way from an older one is the same state.
RETURNS_MAX: Final = 2


class UsableSlices(st.HasCheckpoints, st.HasTrainer, Protocol):
    """The slices with the checkpoints, and the trainer whose model they must fit."""


class TargetSlices(st.HasCheckpoints, st.HasTrainer, st.HasRollbacks, st.HasSnapshots, Protocol):
    """The slices with every possible target, and how often the run went back to each."""


def usable_targets(state: UsableSlices) -> tuple[st.CatalogueEntry, ...]:
    """Return the checkpoints that may be gone back to, oldest first."""
    return tuple(one for one in state.checkpoints.catalogue if one.is_target and not _is_unfit(state, one))


def _is_unfit(state: UsableSlices, one: st.CatalogueEntry) -> bool:
    """Return whether it has another shape than the model in training; a new trainer builds the model again."""
    return state.trainer.alive and one.unfit_incarnation == state.trainer.incarnation


def find_target(state: TargetSlices, command: m.Rollback) -> Restorable | str:
    """Return the target of an order, or a sentence why there is none.

    A snapshot only if the order asks for one or names it.
    """
    named = state.snapshots.find(command.to)
    if named is not None:
        return named
    if command.tier is m.Tier.FAST and not command.to:
        held = [one for one in state.snapshots.promoted if _is_within(one, command)]
        if held:
            return held[-1]
    return _checkpoint(state, command)


def _is_within(one: Restorable, command: m.Rollback) -> bool:
    """Return whether the place is at or before the one that the order names."""
    if command.epoch is not None:
        return (one.epoch, one.batch) <= (command.epoch + 1, 0)
    return command.step is None or one.step <= command.step


def _checkpoint(state: UsableSlices, command: m.Rollback) -> st.CatalogueEntry | str:
    if command.to:
        known = next((one for one in state.checkpoints.catalogue if one.id == command.to), None)
        if known is None:
            return f"there is no checkpoint {command.to!r}; `tolaria checkpoints` lists them"
        if not known.is_way_back:
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


def automatic_target(state: TargetSlices, tier: m.Tier) -> Restorable | None:
    """Return the newest target that the run did not go back to too often: of the tier, else of the full one; else None.

    A target newer than the newest promoted one may contain the fault. If none is promoted yet, all count.
    """
    visits = dict(state.rollbacks.places)
    return _newest(state, tier, lambda one: visits.get(one.step, 0) < RETURNS_MAX)


def newest_target(state: TargetSlices, tier: m.Tier, until: int | None = None) -> Restorable | None:
    """Return the newest proven target of the tier, else of the full one, at or before step `until`, or None.

    The run uses this for its own rollbacks. It goes back no further than necessary: a fault that rollbacks cannot cure
    would otherwise cost all checkpoints.
    """
    return _newest(state, tier, lambda one: until is None or one.step <= until)


def _newest(state: TargetSlices, tier: m.Tier, accept: Callable[[Restorable], bool]) -> Restorable | None:
    """Return the newest accepted snapshot if the tier is the fast one, else the newest accepted checkpoint, or None."""
    held: tuple[Restorable, ...] = state.snapshots.promoted if tier is m.Tier.FAST else ()
    for places in (held, _proven(usable_targets(state))):
        if accepted := [one for one in places if accept(one)]:
            return accepted[-1]
    return None


def _proven(held: tuple[st.CatalogueEntry, ...]) -> tuple[st.CatalogueEntry, ...]:
    newest = max((number for number, one in enumerate(held) if one.promoted), default=len(held))
    return held[: newest + 1]


def target_instead(state: TargetSlices, opened: st.OpenRollback, until: int) -> st.CatalogueEntry | None:
    """Return the target that replaces an unusable one: the newest checkpoint at or before step `until`, or None.

    None if the order named its target. The run's own rollbacks avoid targets that they went back to too often.
    """
    if opened.tier is m.Tier.FAST:
        return target_on_disk(state, until)
    if opened.otherwise is m.RefusalPolicy.STAY:
        return None
    visits = dict(state.rollbacks.places) if opened.otherwise is m.RefusalPolicy.HALT else {}
    older = [one for one in usable_targets(state) if one.step <= until and one.id != opened.checkpoint]
    return next((one for one in reversed(older) if visits.get(one.step, 0) < RETURNS_MAX), None)


def target_on_disk(state: UsableSlices, step: int) -> st.CatalogueEntry | None:
    """Return the newest checkpoint that may be gone back to, at or before `step`, or None."""
    older = [one for one in usable_targets(state) if one.step <= step]
    return older[-1] if older else None


def rejected(
    state: TargetSlices, id_: str, report: m.RollbackRefusedReport | m.CheckpointUnusableReport, context: str = ""
) -> m.SnapshotRejected | m.CheckpointRejected | m.CheckpointUnfit:
    """Return the event for a target that failed its verification, or does not fit the model.

    `context`: the execution context in which that model was built; "" if the reason holds for this trainer only.
    """
    file, why = report.file, report.why
    if state.snapshots.find(id_) is not None:
        return m.SnapshotRejected(id=id_, why=f"{file}: {why}")
    if report.unfit:
        incarnation = state.trainer.incarnation
        return m.CheckpointUnfit(id=id_, file=file, why=why, incarnation=incarnation, context=context)
    return m.CheckpointRejected(id=id_, file=file, why=why)
