"""The values of training that are saved at each place, and how a rollback restores them: the fold over several slices.

When a trainer copies its state for a checkpoint or a snapshot (StateCopied), the fold saves its own values of training
beside it. RolledBack restores them, and resets the fields that begin anew. docs/rollback-state.md gives the reasons.

Invariants: after a rollback every restored field has the value that it had when the target was copied. A restart that
runs steps again changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import asdict, fields, replace

from tolariad.core import messages as m
from tolariad.core.state.checkpoints import HasCheckpoints
from tolariad.core.state.health import HasHealth
from tolariad.core.state.rates import HasRates
from tolariad.core.state.rollback_known import HasKnown, Knowledge, Known
from tolariad.core.state.run import HasRun
from tolariad.core.state.snapshots import HasSnapshots
from tolariad.core.state.steps import HasProgress
from tolariad.core.state.strategy import HasStrategy

# Slice -> the Struct of its restored fields.
_PARTS: Final = {one.name: type(one.default) for one in fields(Known) if isinstance(one.default, msgspec.Struct)}
_ANEW: Final = {
    "progress": ("validating", "validating_epoch"),
    "limits": ("clock_mono",),
    "checkpoints": ("needed_failures", "needs"),
    "boundary": ("asked",),
    "stability": ("healthy_epochs",),
    "instability": ("asked", "last_mono"),
    "overruns": ("going", "raised"),
    "strategy": ("asked", "owed"),
}


class ReadsKnown(
    HasProgress, HasCheckpoints, HasRun, HasRates, HasHealth, HasSnapshots, HasStrategy, HasKnown, Protocol
):
    """The slices of which a rollback restores something, and those with the names of possible targets."""


# The changed slices, by their names in the state.
Changed = Mapping[str, Any]


def known_of(state: ReadsKnown) -> Known:
    """Return the values at the place where training is now."""
    epoch, batch = state.progress.place
    parts = {
        name: part(**{field: getattr(getattr(state, name), field) for field in part.__struct_fields__})
        for name, part in _PARTS.items()
    }
    return Known(state.progress.step, epoch, batch, **parts)  # type: ignore[arg-type]  # each part is its field's type


def _copied(before: ReadsKnown, after: ReadsKnown, e: m.StateCopied) -> Changed:
    """Save the values of the place of the copy. Save nothing if that place is not known here."""
    opened = after.snapshots.open
    names = {one.id for one in after.checkpoints.open} | ({opened.id} if opened else set())
    s, place = after.known, (e.epoch, e.batch)
    # While an epoch is validated, the fold is still at its last batch. `last_batch` has the values from before that.
    here = known_of(before) if before.progress.place == place else None
    found = next(
        (one for one in (s.last_batch, here, s.best_end, *s.former_ends) if one is not None and one.place == place),
        None,
    )
    if e.id not in names or found is None or found.step != e.step:
        return {}
    return {"known": replace(s, held={**s.held, e.id: found})}


def _batches_over(before: ReadsKnown, after: ReadsKnown, _: m.Event) -> Changed:
    """Save the values after the epoch's last batch: what follows belongs to the epoch's end."""
    marked, place = after.known.last_batch, before.progress.place
    if place[1] == 0 or (marked is not None and (marked.place, marked.step) == (place, before.progress.step)):
        return {}
    return {"known": replace(after.known, last_batch=known_of(before))}


def _epoch_started(before: ReadsKnown, after: ReadsKnown, _: m.Event) -> Changed:
    """Save the values at the end of the best epoch."""
    if before.progress.place != (before.limits.best_epoch + 1, 0) or not before.limits.best_epoch:
        return {}
    s, end = after.known, known_of(before)
    former = tuple(one for one in _ends(s) if one.place != end.place)
    return {"known": _without_gone(after, replace(s, best_end=end, former_ends=former))}


def _ends(s: Knowledge) -> tuple[Known, ...]:
    """Return the values at the ends of the best epochs, oldest first."""
    return s.former_ends if s.best_end is None else (*s.former_ends, s.best_end)


def _rolled_back(before: ReadsKnown, after: ReadsKnown, e: m.RolledBack) -> Changed:
    """Restore the values of the target, and drop those of places after it."""
    known = before.known.held.get(e.checkpoint) or _nearest(before, e)
    slices: dict[str, Any] = {name: replace(getattr(after, name), **asdict(getattr(known, name))) for name in _PARTS}
    for name, anew in _ANEW.items():
        slice_: msgspec.Struct = slices.get(name, getattr(after, name))
        new = type(slice_)()
        slices[name] = replace(slice_, **{field: getattr(new, field) for field in anew})
    s, fork = after.known, (e.epoch, e.batch)
    last_batch = s.last_batch if s.last_batch is not None and s.last_batch.place < fork else None
    # Invariant: all are places of this line. Those of the branch that is left lie after the fork.
    ends = tuple(one for one in _ends(s) if one.place < fork)
    best_end = ends[-1] if ends else None
    slices["known"] = _without_gone(after, Knowledge(s.held, last_batch, best_end, ends[:-1]))
    return slices


def _nearest(state: ReadsKnown, e: m.RolledBack) -> Known:
    """Return the values of the newest place before a target that has none, else the defaults.

    An older version made such a target.
    """
    opened = {one.id for one in state.checkpoints.open}
    older = (one for id_, one in state.known.held.items() if id_ not in opened and one.place <= (e.epoch, e.batch))
    return max(older, key=lambda one: (one.place, one.step), default=Known())


def _pruned(_: ReadsKnown, after: ReadsKnown, __: m.Event) -> Changed:
    kept = _without_gone(after, after.known)
    return {} if kept is after.known else {"known": kept}


def _without_gone(state: ReadsKnown, known: Knowledge) -> Knowledge:
    """Keep only the values of places that are open or may be gone back to, and of the best epochs of those."""
    snapshots = state.snapshots
    names = {one.id for one in state.checkpoints.open} | {one.id for one in snapshots.kept}
    names |= {one.id for one in state.checkpoints.catalogue if one.is_target or one.quarantined}
    if snapshots.open is not None:
        names.add(snapshots.open.id)
    if known.held.keys() <= names and not known.former_ends:
        return known
    held = {id_: one for id_, one in known.held.items() if id_ in names}
    bests = {one.limits.best_epoch for one in held.values()}
    return replace(known, held=held, former_ends=tuple(one for one in known.former_ends if one.epoch - 1 in bests))


# Event type -> function of (the state before it, the state after the slices' own tables, the event) -> changed slices.
CHANGES_OF_SEVERAL: Final[dict[type[m.Event], Callable[[ReadsKnown, ReadsKnown, Any], Changed]]] = {
    m.StateCopied: _copied,
    m.ValidationBegun: _batches_over,
    m.EpochFinished: _batches_over,
    m.EpochStarted: _epoch_started,
    m.RolledBack: _rolled_back,
    **dict.fromkeys(
        (
            m.CheckpointCommitted,
            m.CheckpointAborted,
            m.CheckpointRejected,
            m.CheckpointDeletionBegun,
            m.SnapshotBegun,
            m.SnapshotTaken,
            m.SnapshotAborted,
            m.SnapshotRejected,
            m.SnapshotRingOpened,
            m.DaemonStarted,
        ),
        _pruned,
    ),
}
