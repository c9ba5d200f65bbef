"""What was known of training at each place that a rollback may go to, and how a rollback brings it back.

When a trainer copies its state for a checkpoint or a snapshot (StateCopied), the fold keeps beside it what it knows of
training there. RolledBack restores it, and lets begin anew what `core.rollback.fates` says.

Invariants: after a rollback every field that is `RESTORED` has the value that it had when the target was copied. What is kept
belongs to a checkpoint or snapshot that is open or may still be gone back to: CATALOGUE_MAX and SLOTS_MAX of them at most,
and two places beside them. A restart that runs steps again changes nothing here.
It must not know: what any of the fields means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict, fields, replace

from tolariad.core.checkpoints import words as ck
from tolariad.core.decision import Decision
from tolariad.core.rates.slice import Change
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.fates import ROWS, Fate
from tolariad.core.run import words as run
from tolariad.core.snapshots import words as sn
from tolariad.core.steps import words as steps

if TYPE_CHECKING:
    from tolariad.core.engine import At
    from tolariad.core.state import RunState
    from tolariad.core.vocabulary import Event


class KnownProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `steps.Progress`."""

    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    epoch_first_step: int = 1
    epoch_loss_sum: float = 0.0
    metrics: dict[str, float] = {}
    best_accuracy: float | None = None
    train_loss: float | None = None
    skip_epoch: int = 0
    skip_batch: int = 0


class KnownLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `limits.Limits`."""

    best: float | None = None
    best_epoch: int = 0
    reached: steps.Limit | None = None


class KnownRates(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `rates.Rates`: why each rate is what it is. The rates themselves lie in the checkpoint."""

    changes: dict[str, Change] = {}
    unjudged: bool = False


class KnownStability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `conservative.Stability`."""

    in_epoch: int = 0


class KnownInstability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `instability.Instability`: the averages that accuracy and step time are held against."""

    accuracy: float | None = None
    validations: int = 0
    fallen: int = 0
    step_s: float = 0.0
    sound_step: int = 0


class KnownSnapshots(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `snapshots.Snapshots`."""

    unhealthy_step: int = 0


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was known at one place: after `step`, where batch `batch` of `epoch` had been taken."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    progress: KnownProgress = KnownProgress()
    limits: KnownLimits = KnownLimits()
    rates: KnownRates = KnownRates()
    stability: KnownStability = KnownStability()
    instability: KnownInstability = KnownInstability()
    snapshots: KnownSnapshots = KnownSnapshots()

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and batch."""
        return self.epoch, self.batch


class Knowledge(msgspec.Struct, frozen=True):
    """Slice of RunState. `held`: by the name of the checkpoint or snapshot.

    A trainer that runs steps again may copy its state at a place that the fold has passed already: at the last batch of the
    newest epoch, or at the end of the best one. `last_batch` and `best_end` are what was known there.
    """

    held: dict[str, Known] = {}
    last_batch: Known | None = None
    best_end: Known | None = None


_PARTS: Final[dict[str, type[msgspec.Struct]]] = {
    "progress": KnownProgress,
    "limits": KnownLimits,
    "rates": KnownRates,
    "stability": KnownStability,
    "instability": KnownInstability,
    "snapshots": KnownSnapshots,
}


_ANEW: Final = {row.slice: row.names.split() for row in ROWS if row.fate is Fate.ANEW}


# -- the fold ----------------------------------------------------------------------------------------------------------


def known_of(state: RunState) -> Known:
    """What is known where training stands."""
    epoch, batch = state.progress.place
    parts = {
        name: part(**{field: getattr(getattr(state, name), field) for field in part.__struct_fields__})
        for name, part in _PARTS.items()
    }
    return Known(state.progress.step, epoch, batch, **parts)  # type: ignore[arg-type]  # each part is its field's type


def _copied(before: RunState, after: RunState, e: rb.StateCopied) -> RunState:
    """What was known at the place of the copy; nothing, if that is none of the places known here."""
    opened = after.snapshots.open
    names = {one.id for one in after.checkpoints.open} | ({opened.id} if opened else set())
    s, place = after.known, (e.epoch, e.batch)
    # The fold stays at an epoch's last batch while that is validated: `last_batch` is of the time before.
    here = known_of(before) if before.progress.place == place else None
    found = next((one for one in (s.last_batch, here, s.best_end) if one is not None and one.place == place), None)
    if e.id not in names or found is None or found.step != e.step:
        return after
    return replace(after, known=replace(s, held={**s.held, e.id: found}))


def _batches_over(before: RunState, after: RunState, _: Event) -> RunState:
    """The epoch's last batch is done: what follows belongs to its end."""
    marked, place = after.known.last_batch, before.progress.place
    if place[1] == 0 or (marked is not None and (marked.place, marked.step) == (place, before.progress.step)):
        return after
    return replace(after, known=replace(after.known, last_batch=known_of(before)))


def _epoch_started(before: RunState, after: RunState, _: Event) -> RunState:
    """The end of the best epoch is left behind."""
    if before.progress.place != (before.limits.best_epoch + 1, 0) or not before.limits.best_epoch:
        return after
    return replace(after, known=replace(after.known, best_end=known_of(before)))


def _rolled_back(before: RunState, after: RunState, e: rb.RolledBack) -> RunState:
    """Restore what was known at the target, and drop what belongs to places beyond it."""
    known = before.known.held.get(e.checkpoint) or _nearest(before, e)
    slices: dict[str, Any] = {name: replace(getattr(after, name), **asdict(getattr(known, name))) for name in _PARTS}
    for name, anew in _ANEW.items():
        slice_ = slices.get(name, getattr(after, name))
        slices[name] = replace(slice_, **{field: _default_of(type(slice_), field) for field in anew})
    s, fork = after.known, (e.epoch, e.batch)
    kept = [one if one is not None and one.place < fork else None for one in (s.last_batch, s.best_end)]
    slices["known"] = Knowledge(s.held, *kept)
    return _pruned(before, replace(after, **slices), e)


def _nearest(state: RunState, e: rb.RolledBack) -> Known:
    """For a target of which nothing was kept (an older version made it): the newest place before it, else a run's beginning."""
    opened = {one.id for one in state.checkpoints.open}
    older = (one for id_, one in state.known.held.items() if id_ not in opened and one.place <= (e.epoch, e.batch))
    return max(older, key=lambda one: (one.place, one.step), default=Known())


def _default_of(kind: type[msgspec.Struct], name: str) -> Any:
    return next(field.default for field in fields(kind) if field.name == name)


def _pruned(_: RunState, after: RunState, __: Event) -> RunState:
    """Keep only what belongs to something that is open, or may be gone back to."""
    s, snapshots = after.known, after.snapshots
    names = {one.id for one in after.checkpoints.open} | {one.id for one in snapshots.kept}
    names |= {one.id for one in after.checkpoints.catalogue if one.is_target or one.quarantined}
    if snapshots.open is not None:
        names.add(snapshots.open.id)
    if s.held.keys() <= names:
        return after
    return replace(after, known=replace(s, held={id_: one for id_, one in s.held.items() if id_ in names}))


def copied(state: RunState, report: rb.StateCopiedReport, _: At[RunState]) -> Decision | None:
    """Record the copy, unless what it was made for has its end already."""
    opened = state.snapshots.open
    causes = {one.id: one.cause for one in state.checkpoints.open} | ({opened.id: opened.cause} if opened else {})
    at = causes.get(report.id)
    if at is None:
        return None
    event = rb.StateCopied(
        id=report.id, step=report.step, epoch=report.epoch, batch=report.batch, cause=at.seq, root=at.root
    )
    return Decision((event,))


# Event type -> function of (the state before it, the state that the slices' own tables made of it, the event).
APPLY: Final[dict[type[Event], Callable[[RunState, RunState, Any], RunState]]] = {
    rb.StateCopied: _copied,
    steps.ValidationBegun: _batches_over,
    steps.EpochFinished: _batches_over,
    steps.EpochStarted: _epoch_started,
    rb.RolledBack: _rolled_back,
    **dict.fromkeys(
        (
            ck.CheckpointCommitted,
            ck.CheckpointAborted,
            ck.CheckpointRejected,
            ck.CheckpointDeletionBegun,
            sn.SnapshotBegun,
            sn.SnapshotTaken,
            sn.SnapshotAborted,
            sn.SnapshotRejected,
            sn.SnapshotRingOpened,
            run.DaemonStarted,
        ),
        _pruned,
    ),
}
