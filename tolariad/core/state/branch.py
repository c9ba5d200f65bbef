"""A branch of training: what belongs to it, how it is saved with each copy of the state, and how a rollback goes back.

When a trainer copies its state for a checkpoint or a snapshot (StateCopied), the fold saves the Branch beside it.
RolledBack puts it back, in one function, which changes every other slice that a rollback changes as well. What survives
a rollback, and why, is in the description of each field (`fates`).

Histories (moves of seeds, masks, changes of the model) are not in a Branch. At a place a history is the beginning of
what it is later, so going back cuts it. The number of boundary orders that the target contains tells where. Only a
pinned state has them besides (`Histories`): its branch may be left, and live again.

Invariants: after a rollback every field of the Branch has the value that it had when the target was copied. A restart
that runs steps again changes nothing here. Every copy belongs to a checkpoint or snapshot that is open or may be gone
back to. There are at most CATALOGUE_MAX and SNAPSHOT_SLOTS_MAX of them, and two further places. Equal values have equal
bytes: a part that has a float with a default omits no defaults. msgspec compares a default by identity, and a capture
gives back another object.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import fields, replace

from tolariad.core import messages as m
from tolariad.core.state.architecture import Architecture, HasArchitecture, architecture_at
from tolariad.core.state.boundary import HasBoundary
from tolariad.core.state.checkpoints import Checkpoints, HasCheckpoints, checkpoints_at
from tolariad.core.state.fates import set_back
from tolariad.core.state.health import BranchStability, HasHealth
from tolariad.core.state.health_detection import BranchInstability
from tolariad.core.state.pruning import HasPruning, Pruning, pruning_at
from tolariad.core.state.rates import BranchRates, HasRates
from tolariad.core.state.run import HasRun
from tolariad.core.state.run_limit import BranchLimits
from tolariad.core.state.seeds import HasSeeds, Seeds, seeds_at
from tolariad.core.state.snapshots import BranchSnapshots, HasSnapshots, Snapshots, snapshots_at
from tolariad.core.state.stages import HasStages, Stages, stages_at
from tolariad.core.state.steps import BranchProgress, HasProgress, progress_at
from tolariad.core.state.strategy import BranchStrategy, HasStrategy

_Slice = TypeVar("_Slice", bound=msgspec.Struct)


class Branch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What belongs to a branch of training, after `step`, when batch `batch` of `epoch` had been consumed.

    A part has the name of its slice, and the slice has the fields of its part.
    """

    step: int = 0
    epoch: int = 1
    batch: int = 0
    progress: BranchProgress = BranchProgress()
    limits: BranchLimits = BranchLimits()
    rates: BranchRates = BranchRates()
    stability: BranchStability = BranchStability()
    instability: BranchInstability = BranchInstability()
    snapshots: BranchSnapshots = BranchSnapshots()
    strategy: BranchStrategy = BranchStrategy()

    @property
    def place(self) -> tuple[int, int]:
        """Return epoch and batch."""
        return self.epoch, self.batch


# Slice -> its part.
PARTS: Final = {one.name: type(one.default) for one in fields(Branch) if isinstance(one.default, msgspec.Struct)}
_LEFT: Final = set_back("copies of places after the target are dropped")


class Histories(msgspec.Struct, frozen=True):
    """What a pinned state needs if its branch is left: its histories, and the Branch at the ends of its epochs."""

    architecture: Architecture
    seeds: Seeds
    pruning: Pruning
    stages: Stages
    last_batch: Branch | None = None
    best_end: Branch | None = None
    former_ends: tuple[Branch, ...] = ()


class Copies(msgspec.Struct, frozen=True):
    """Slice of RunState. `held`: the Branch by the name of the checkpoint or snapshot.

    A trainer that runs steps again may copy its state at a place that the fold has already passed. Examples are the
    last batch of the newest epoch, and the best validation. `last_batch` and `best_end` hold the Branch at these two
    places, and `former_ends` those of former best validations that a rollback may bring back, oldest first.
    `histories`: the histories of the state that a trial left, by its name.
    """

    held: Annotated[dict[str, Branch], _LEFT] = {}
    last_batch: Annotated[Branch | None, _LEFT] = None
    best_end: Annotated[Branch | None, _LEFT] = None
    former_ends: Annotated[tuple[Branch, ...], _LEFT] = ()
    histories: Annotated[dict[str, Histories], _LEFT] = {}

    @property
    def ends(self) -> tuple[Branch, ...]:
        """Return the Branch at the ends of the best epochs, oldest first."""
        return self.former_ends if self.best_end is None else (*self.former_ends, self.best_end)


class HasCopies(Protocol):
    """A state with this slice."""

    @property
    def copies(self) -> Copies:
        """Return the Branch at each copy of the state."""


class HasTargets(HasCheckpoints, HasCopies, Protocol):
    """The slices with the targets of rollbacks, and the Branch of each."""


class GoesBack(
    HasRun,
    HasProgress,
    HasCheckpoints,
    HasSnapshots,
    HasArchitecture,
    HasSeeds,
    HasPruning,
    HasStages,
    HasRates,
    HasBoundary,
    HasHealth,
    HasStrategy,
    HasCopies,
    Protocol,
):
    """The slices that a rollback changes, and those with the names of possible targets."""


# The changed slices, by their names in the state.
Changed = Mapping[str, Any]


# -- saving ------------------------------------------------------------------------------------------------------------


def branch_of(state: GoesBack) -> Branch:
    """Return what belongs to the branch at the place where training is now."""
    epoch, batch = state.progress.place
    parts = {
        name: part(**{field: getattr(getattr(state, name), field) for field in part.__struct_fields__})
        for name, part in PARTS.items()
    }
    return Branch(state.progress.step, epoch, batch, **parts)  # type: ignore[arg-type]  # each part is its field's type


def _copied(before: GoesBack, after: GoesBack, e: m.StateCopied) -> Changed:
    """Save the Branch at the place of the copy. Save nothing if that place is not known here."""
    opened = after.snapshots.open
    names = {one.id for one in after.checkpoints.open} | ({opened.id} if opened else set())
    s, place = after.copies, (e.epoch, e.batch)
    # While an epoch is validated, the fold is still at its last batch. `last_batch` has the values from before that.
    here = branch_of(before) if before.progress.place == place else None
    found = next(
        (one for one in (s.last_batch, here, s.best_end, *s.former_ends) if one is not None and one.place == place),
        None,
    )
    if e.id not in names or found is None or found.step != e.step:
        return {}
    histories = s.histories
    if after.checkpoints.reason_of(e.id) is m.CheckpointReason.PIN:
        past = before.architecture, before.seeds, before.pruning, before.stages
        whole = Histories(*past, s.last_batch, s.best_end, s.former_ends)
        histories = {**histories, e.id: whole}
    return {"copies": replace(s, held={**s.held, e.id: found}, histories=histories)}


def _copied_from(_: GoesBack, after: GoesBack, e: m.CheckpointBegun) -> Changed:
    """Save the Branch of a snapshot for the checkpoint that is written from it."""
    held = after.copies.held
    return {"copies": replace(after.copies, held={**held, e.id: held[e.copy_of]})} if e.copy_of in held else {}


def _batches_over(before: GoesBack, after: GoesBack, e: m.ValidationBegun | m.EpochFinished) -> Changed:
    """Save the Branch after the epoch's last batch: what follows belongs to the epoch's end."""
    marked, place = after.copies.last_batch, before.progress.place
    if isinstance(e, m.ValidationBegun) and e.batch:
        return {}
    if place[1] == 0 or (marked is not None and (marked.place, marked.step) == (place, before.progress.step)):
        return {}
    end = branch_of(before)
    left = replace(after.copies, last_batch=end)
    return _best_at(after, left, end) if _is_best(before) else {"copies": left}


def _best_left(before: GoesBack, after: GoesBack, e: m.EpochStarted | m.StepCompleted | m.StepSkipped) -> Changed:
    """Save the Branch at the best validation when training goes on from there.

    Not before: a finding a step late, a violation of rates or a limit may still come at that place.
    """
    # The first step of an epoch does not leave its beginning: the start of the epoch did.
    if not (isinstance(e, m.EpochStarted) or before.limits.best_batch) or not _is_best(before):
        return {}
    return _best_at(after, after.copies, branch_of(before))


def _is_best(state: GoesBack) -> bool:
    return state.limits.best_epoch != 0 and state.progress.place == state.limits.best_place


def _best_at(after: GoesBack, s: Copies, end: Branch) -> Changed:
    former = tuple(one for one in s.ends if one.place != end.place)
    return {"copies": _without_gone(after.checkpoints, after.snapshots, replace(s, best_end=end, former_ends=former))}


def _pruned(_: GoesBack, after: GoesBack, __: m.Event) -> Changed:
    kept = _without_gone(after.checkpoints, after.snapshots, after.copies)
    return {} if kept is after.copies else {"copies": kept}


def _without_gone(disk: Checkpoints, memory: Snapshots, copies: Copies) -> Copies:
    """Keep only the copies that are open or may be gone back to, and the ends of the best epochs of those."""
    names = {one.id for one in disk.open} | {one.id for one in memory.kept}
    names |= {one.id for one in disk.catalogue if one.is_target or one.quarantined or one.pinned}
    if memory.open is not None:
        names.add(memory.open.id)
    if copies.held.keys() <= names and not copies.former_ends and not copies.histories:
        return copies
    held = {id_: one for id_, one in copies.held.items() if id_ in names}
    histories = {id_: one for id_, one in copies.histories.items() if id_ in names}
    bests = {one.limits.best_place for one in held.values()}
    ends = tuple(one for one in copies.former_ends if one.place in bests)
    return replace(copies, held=held, histories=histories, former_ends=ends)


# -- going back --------------------------------------------------------------------------------------------------------


def _rolled_back(before: GoesBack, after: GoesBack, e: m.RolledBack) -> Changed:
    """Put training back on the target's branch. Whatever is not named here survives."""
    branch = branch_at(before, e.checkpoint, (e.epoch, e.batch))
    kept, memory, copies = checkpoints_at(after.checkpoints, e), after.snapshots, after.copies
    left = next((one for one in before.checkpoints.catalogue if one.id == e.checkpoint and one.abandoned), None)
    whole: GoesBack | Histories = after
    if left is not None and (found := copies.histories.get(e.checkpoint)) is not None:
        # The branch of the target was left, and lives again: what was made on the other one since is no part of it.
        whole, memory = found, replace(memory, kept=())
        copies = replace(copies, last_batch=found.last_batch, best_end=found.best_end, former_ends=found.former_ends)
    changed: dict[str, Any] = {
        "progress": _put(branch.progress, progress_at(after.progress, e), validating=None, validating_epoch=0),
        "limits": _put(branch.limits, after.limits, clock_mono=0),
        "rates": _put(branch.rates, after.rates, stale=True),
        "stability": _put(branch.stability, after.stability, healthy_epochs=0),
        "instability": _put(branch.instability, after.instability, asked=None, last_mono=0),
        "snapshots": _put(branch.snapshots, snapshots_at(memory, e)),
        "strategy": _put(branch.strategy, after.strategy, asked=None, owed=0),
        "checkpoints": replace(kept, needed_failures=0, needs=0),
        "boundary": replace(after.boundary, asked=None),
        "overruns": replace(after.overruns, going=None, raised=None),
        "architecture": architecture_at(whole.architecture, e),
        "seeds": seeds_at(whole.seeds, e),
        "pruning": pruning_at(whole.pruning, e),
        "stages": stages_at(whole.stages, e),
    }
    return {**changed, "copies": _cut(kept, changed["snapshots"], copies, (e.epoch, e.batch))}


def _put(part: msgspec.Struct, slice_: _Slice, **others: Any) -> _Slice:
    """Return the slice with the fields of its part, and these others."""
    return replace(slice_, **{field: getattr(part, field) for field in part.__struct_fields__}, **others)


def branch_at(state: HasTargets, id_: str, place: tuple[int, int]) -> Branch:
    """Return the Branch that a rollback to this target puts back. `place`: its epoch and batch.

    If the target was copied in a re-run, at a place of which nothing was kept, it is the one at the newest place
    before; else that of a new run.
    """
    if (held := state.copies.held.get(id_)) is not None:
        return held
    opened = {one.id for one in state.checkpoints.open}
    older = (one for name, one in state.copies.held.items() if name not in opened and one.place <= place)
    return max(older, key=lambda one: (one.place, one.step), default=Branch())


def _cut(disk: Checkpoints, memory: Snapshots, s: Copies, fork: tuple[int, int]) -> Copies:
    """Drop the copies of places after the fork.

    Invariant: all are places of this line. Those of the branch that is left lie after the fork. A place at the fork is
    saved again when training goes on from there.
    """
    last_batch = s.last_batch if s.last_batch is not None and s.last_batch.place < fork else None
    ends = tuple(one for one in s.ends if one.place < fork)
    left = Copies(s.held, last_batch, ends[-1] if ends else None, ends[:-1], s.histories)
    return _without_gone(disk, memory, left)


# Event type -> function of (the state before it, the state after the slices' own tables, the event) -> changed slices.
CHANGES_OF_SEVERAL: Final[dict[type[m.Event], Callable[[GoesBack, GoesBack, Any], Changed]]] = {
    m.StateCopied: _copied,
    m.ValidationBegun: _batches_over,
    m.EpochFinished: _batches_over,
    **dict.fromkeys((m.EpochStarted, m.StepCompleted, m.StepSkipped), _best_left),
    m.RolledBack: _rolled_back,
    m.CheckpointBegun: _copied_from,
    **dict.fromkeys(
        (
            m.CheckpointCommitted,
            m.CheckpointAborted,
            m.CheckpointRejected,
            m.CheckpointDeletionBegun,
            m.PinReleased,
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
