"""Checkpoints: slice, apply table, and the checkpoint that training begins from.

Invariants: an open checkpoint ends in exactly one of Committed and Aborted. The catalogue never forgets the first
checkpoint of a run, the best and the newest ones. Training never begins from a rejected one again. One that only has
another shape than a model is still usable for a model that it fits.
"""

from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding
from tolariad.core.state.checkpoints_catalogue import CatalogueEntry, OpenCheckpoint, Removing, Watched, best_of
from tolariad.core.state.fates import COUNTER, NEW_BRANCH, OF_THE_TRAINER, anew, set_back, survives
from tolariad.core.state.fold import ApplyTable, setting

CATALOGUE_MAX: Final = 1000
OPEN_MAX: Final = 16


_LEFT: Final = set_back("checkpoints after the target are abandoned")
_FILES: Final = survives("it describes files on disk")
_ENDS_AGAIN: Final = anew("the run comes to its end again, with checkpoints of another size perhaps")


class Checkpoints(msgspec.Struct, frozen=True):
    """Slice of RunState: the catalogue, oldest first.

    `clock_mono`: when the interval to the next one began. `best`: the id of the checkpoint that holds the end of the
    best epoch, or empty. `script_seq`: the event at which the present trainer's script begins. `rerunning`: whether
    that script is being run. `watched`: those not promoted yet, oldest first. `watch_from`: healthy steps are counted
    from this step. `given_up`: why the last one ordered was aborted; "" if it was not. `needed_failures`: how often
    the run's first or last one was aborted while its trainer lived. `needs`: the bytes of the newest one for which
    there was no space, until one is committed. `seconds`: how long the newest one took to write; 0 if none is known.
    """

    ordered: Annotated[int, COUNTER] = 0
    open: Annotated[tuple[OpenCheckpoint, ...], _LEFT] = ()
    catalogue: Annotated[tuple[CatalogueEntry, ...], _LEFT] = ()
    clock_mono: Annotated[int, set_back("the next one is due an interval after the rollback")] = 0
    best: Annotated[str, _LEFT] = ""
    branch: Annotated[int, NEW_BRANCH] = 0
    removing: Annotated[tuple[Removing, ...], _FILES] = ()
    removed: Annotated[int, COUNTER] = 0
    exhausted: Annotated[bool, _FILES] = False
    script_seq: Annotated[int, OF_THE_TRAINER] = 1
    rerunning: Annotated[bool, OF_THE_TRAINER] = False
    watched: Annotated[tuple[Watched, ...], _LEFT] = ()
    watch_from: Annotated[int, set_back("the run went wrong after the target: a promotion needs new healthy steps")] = 0
    given_up: Annotated[str, _FILES] = ""
    needed_failures: Annotated[int, _ENDS_AGAIN] = 0
    needs: Annotated[int, _ENDS_AGAIN] = 0
    seconds: Annotated[float, _FILES] = 0.0

    @property
    def best_place(self) -> tuple[int, int]:
        """Return epoch and batch after which training goes on from `best`; (0, 0) if there is none."""
        return next(((one.epoch, one.batch) for one in self.catalogue if one.id == self.best), (0, 0))

    @property
    def newest(self) -> CatalogueEntry | None:
        """Return the newest checkpoint that training may begin from, or None."""
        return self.newest_for("")

    def newest_for(self, context: str) -> CatalogueEntry | None:
        """Return the newest checkpoint that training may begin from in `context`, or None.

        It leaves out those known not to fit the model that is built there. "": any context.
        """
        fitting = (one for one in reversed(self.catalogue) if not (one.unfit_context and one.unfit_context == context))
        return next((one for one in fitting if one.is_target), None)

    @property
    def newest_promoted(self) -> str:
        """Return the id of the newest promoted checkpoint that training may begin from, or the empty string."""
        return next((one.id for one in reversed(self.catalogue) if one.promoted and one.is_target), "")

    @property
    def is_ending(self) -> bool:
        """Return whether the run's last checkpoint is being written."""
        return any(one.reason is m.CheckpointReason.END for one in self.open)

    def reason_of(self, id_: str) -> m.CheckpointReason | None:
        """Return why the open checkpoint `id_` was ordered, or None if it is not open."""
        return next((one.reason for one in self.open if one.id == id_), None)

    @property
    def next_id(self) -> str:
        """Return the name of the next checkpoint. No name is used twice, committed or not."""
        return f"c{self.ordered + 1:06d}"


class HasCheckpoints(Protocol):
    """A state with this slice."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return the catalogue."""


def _begun(s: Checkpoints, e: m.CheckpointBegun, at: m.Cause) -> Checkpoints:
    again = e.script_seq or (s.script_seq if s.rerunning else 0)
    one = OpenCheckpoint(e.id, e.reason, at, e.branch, e.orders, script_seq=again, copy_of=e.copy_of)
    # A copy of an older state is not one of the regular checkpoints.
    clock_mono = s.clock_mono if e.copy_of else e.mono
    return replace(s, ordered=s.ordered + 1, open=(*s.open, one), clock_mono=clock_mono)


def _without(s: Checkpoints, id_: str) -> tuple[OpenCheckpoint, ...]:
    return tuple(one for one in s.open if one.id != id_)


def _committed(s: Checkpoints, e: m.CheckpointCommitted, at: m.Cause) -> Checkpoints:
    order = next((one for one in s.open if one.id == e.id), None)
    entry = CatalogueEntry.of(
        e,
        reason=order.reason if order else m.CheckpointReason.ORDERED,
        begun_seq=order.cause.seq if order else at.seq,
        committed_seq=at.seq,
        abandoned=e.branch != s.branch and (order is None or order.is_left((e.step, e.epoch, e.batch), e.orders)),
        importance=sum(piece.size for piece in e.pieces if piece.name.startswith("importance-")),
        script_seq=_script_seq(s, order, e.orders),
        pinned=order is not None and order.reason is m.CheckpointReason.PIN,
    )
    catalogue = _with(s.catalogue, entry, is_copy=order is not None and bool(order.copy_of))
    best = best_of(catalogue)
    if len(catalogue) > CATALOGUE_MAX:
        forgotten = next(one for one in catalogue[1:] if one.id != best)
        catalogue = tuple(one for one in catalogue if one is not forgotten)
    watched = s.watched if entry.abandoned else (*s.watched, Watched(e.id, e.step))[-CATALOGUE_MAX:]
    return replace(
        s,
        open=_without(s, e.id),
        catalogue=catalogue,
        best=best,
        watched=watched,
        given_up="",
        needed_failures=0,
        needs=0,
        seconds=e.seconds,
    )


def _with(catalogue: tuple[CatalogueEntry, ...], entry: CatalogueEntry, *, is_copy: bool) -> tuple[CatalogueEntry, ...]:
    """Return the catalogue with one more entry. One of an older state has its place before those of newer ones."""
    after = len(catalogue)
    while is_copy and after and catalogue[after - 1].step > entry.step:
        after -= 1
    return (*catalogue[:after], entry, *catalogue[after:])


def _promoted(s: Checkpoints, e: m.CheckpointPromoted, _: m.Cause) -> Checkpoints:
    return replace(s, catalogue=_marked(s, e.id, promoted=True), watched=_unwatched(s, e.id))


def _marked(s: Checkpoints, id_: str, **changed: Any) -> tuple[CatalogueEntry, ...]:
    """Return the catalogue with these fields of one entry changed."""
    return tuple(replace(one, **changed) if one.id == id_ else one for one in s.catalogue)


def _unwatched(s: Checkpoints, id_: str) -> tuple[Watched, ...]:
    return tuple(one for one in s.watched if one.id != id_)


def _unhealthy(s: Checkpoints, e: m.InstabilityDetected, _: m.Cause) -> Checkpoints:
    """Count healthy steps anew. A stall says nothing about the state, so it does not count."""
    return s if e.finding is Finding.STALL else replace(s, watch_from=max(s.watch_from, e.step))


def _script_seq(s: Checkpoints, order: OpenCheckpoint | None, orders: int | None) -> int:
    if order is None:
        return 0
    # Its trainer was about to repeat the rest of its own script, at the end of an epoch that had ended before.
    is_behind = orders is not None and orders < order.orders
    return s.script_seq if is_behind else order.script_seq


def _aborted(s: Checkpoints, e: m.CheckpointAborted, _: m.Cause) -> Checkpoints:
    failures = s.needed_failures + (s.reason_of(e.id) in (m.CheckpointReason.START, m.CheckpointReason.END))
    return replace(s, open=_without(s, e.id), given_up=e.why, needed_failures=failures, needs=e.needs or s.needs)


def _quarantined(s: Checkpoints, e: m.QuarantineAdded, _: m.Cause) -> Checkpoints:
    if not e.checkpoint:
        return s
    return replace(s, catalogue=_marked(s, e.checkpoint, quarantined=e.name))


def _released(s: Checkpoints, e: m.QuarantineRemoved, _: m.Cause) -> Checkpoints:
    return replace(
        s, catalogue=tuple(replace(one, quarantined="") if one.quarantined == e.name else one for one in s.catalogue)
    )


def _pinned(s: Checkpoints, e: m.StatePinned, _: m.Cause) -> Checkpoints:
    return replace(s, catalogue=_marked(s, e.checkpoint, pinned=True))


def _unpinned(s: Checkpoints, e: m.PinReleased, _: m.Cause) -> Checkpoints:
    return replace(s, catalogue=_marked(s, e.checkpoint, pinned=False))


def _rejected(s: Checkpoints, e: m.CheckpointRejected, _: m.Cause) -> Checkpoints:
    catalogue = _marked(s, e.id, rejected=True)
    return replace(s, catalogue=catalogue, best=best_of(catalogue), watched=_unwatched(s, e.id))


def _unfit(s: Checkpoints, e: m.CheckpointUnfit, _: m.Cause) -> Checkpoints:
    found = {"unfit_context": e.context} if e.context else {"unfit_incarnation": e.incarnation}
    return replace(s, catalogue=_marked(s, e.id, **found))


def checkpoints_at(s: Checkpoints, e: m.RolledBack) -> Checkpoints:
    """Return the checkpoints with those after the fork abandoned: they are not part of the run from here on."""
    fork = (e.step, e.epoch, e.batch)
    target = next((index for index, one in enumerate(s.catalogue) if one.id == e.checkpoint), None)

    def is_left(index: int, one: CatalogueEntry) -> bool:
        place = (one.step, one.epoch, one.batch)
        # A checkpoint of the same step, taken after the target, may contain boundary orders that the target does not.
        if target is not None:
            return index > target or place > fork
        return place > fork or (place == fork and None not in (one.orders, e.orders) and one.orders != e.orders)

    catalogue = tuple(replace(one, abandoned=True) if is_left(n, one) else one for n, one in enumerate(s.catalogue))
    if target is not None and catalogue[target].pinned:
        # The branch that it lies on was left, and lives again.
        catalogue = _marked(replace(s, catalogue=catalogue), e.checkpoint, abandoned=False)
    opened = tuple(one.passed(fork, e.orders) for one in s.open)
    left = {one.id for one in catalogue if one.abandoned}
    return replace(
        s,
        catalogue=catalogue,
        branch=e.branch,
        best=best_of(catalogue),
        clock_mono=e.mono,
        open=opened,
        watched=tuple(one for one in s.watched if one.id not in left),
        watch_from=e.step,
    )


def _training_started(s: Checkpoints, e: m.TrainingStarted, _: m.Cause) -> Checkpoints:
    entry = next((one for one in s.catalogue if one.id == e.checkpoint), None)
    return replace(s, clock_mono=e.mono, script_seq=entry.script_from if entry else 1, needed_failures=0, needs=0)


def _gap(s: Checkpoints, e: m.GapRecorded, _: m.Cause) -> Checkpoints:
    # The lost events may have ordered checkpoints whose files exist: never reuse their names.
    return replace(s, ordered=max(s.ordered, e.checkpoints_seen))


def _deletion_begun(s: Checkpoints, e: m.CheckpointDeletionBegun, at: m.Cause) -> Checkpoints:
    catalogue = _marked(s, e.id, condemned=True)
    removing = (*s.removing, Removing(e.id, at, e.keeps_importance))
    watched = _unwatched(s, e.id)
    return replace(s, catalogue=catalogue, removing=removing, best=best_of(catalogue), watched=watched)


def _deleted(s: Checkpoints, e: m.CheckpointDeleted, _: m.Cause) -> Checkpoints:
    begun = next((one for one in s.removing if one.id == e.id), None)
    if begun is not None and begun.keeps_importance:
        catalogue = tuple(_reduced(one) if one.id == e.id else one for one in s.catalogue)
    else:
        catalogue = tuple(one for one in s.catalogue if one.id != e.id)
    return replace(s, catalogue=catalogue, removing=_still(s, e.id), removed=s.removed + 1)


def _reduced(entry: CatalogueEntry) -> CatalogueEntry:
    return replace(entry, condemned=False, reduced=True, size=entry.importance)


def _deletion_aborted(s: Checkpoints, e: m.CheckpointDeletionAborted, _: m.Cause) -> Checkpoints:
    return replace(s, removing=_still(s, e.id))


def _still(s: Checkpoints, id_: str) -> tuple[Removing, ...]:
    return tuple(one for one in s.removing if one.id != id_)


APPLY: Final[ApplyTable] = {
    m.CheckpointBegun: _begun,
    m.CheckpointCommitted: _committed,
    m.CheckpointPromoted: _promoted,
    m.InstabilityDetected: _unhealthy,
    m.CheckpointAborted: _aborted,
    m.StatePinned: _pinned,
    m.PinReleased: _unpinned,
    m.CheckpointRejected: _rejected,
    m.CheckpointUnfit: _unfit,
    m.QuarantineAdded: _quarantined,
    m.QuarantineRemoved: _released,
    m.CheckpointDeletionBegun: _deletion_begun,
    m.CheckpointDeleted: _deleted,
    m.CheckpointDeletionAborted: _deletion_aborted,
    m.StorageExhausted: setting(exhausted=True),
    m.StorageRelieved: setting(exhausted=False),
    m.TrainingStarted: _training_started,
    m.RerunBegun: setting(rerunning=True),
    m.RerunFinished: setting(rerunning=False),
    m.RerunAborted: setting(rerunning=False),
    m.GapRecorded: _gap,
}
