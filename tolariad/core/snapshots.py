"""Snapshots: slice, apply table, when one is due, which slot it takes, when it is promoted, which one may be gone back to.

A snapshot is taken of a healthy state, and promoted after `watch_steps` healthy steps: only then does a rollback use it. A
trainer that died is started again from the newest one, promoted or not, since that is not to undo anything. Invariants: one
is taken at a time; the newest promoted one, and the oldest that is still watched, are never overwritten; with the daemon
goes the memory, and with it all of them. It must not know: memory, files, tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from tolariad.core import limits as limit_rules
from tolariad.core.catalogue import Entry
from tolariad.core.decision import NOTHING, Decision
from tolariad.core.run import Phase
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import detection as det
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary import run
from tolariad.core.vocabulary import snapshots as sn
from tolariad.core.vocabulary.base import ApplyTable, Cause, Event, storable

if TYPE_CHECKING:
    from tolariad.core.inputs import RingPrepared, SnapshotDiffers
    from tolariad.core.state import RunState

# With one slot there would be none to go back to while the next one is taken.
SLOTS_MIN: Final = 2
SLOTS_MAX: Final = 64


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that can be restored. `begun_seq`: as of a checkpoint. Healthy steps are counted from `watched_from`."""

    id: str
    slot: int
    step: int
    epoch: int
    batch: int
    branch: int
    table: str
    begun_seq: int
    watched_from: int
    promoted: bool = False
    orders: int | None = None

    @property
    def script_from(self) -> int:
        """The first event that a script of what follows is cut from."""
        return self.begun_seq

    @property
    def ref(self) -> ck.CheckpointRef:
        """What the trainer needs of it."""
        return ck.CheckpointRef(
            id=self.id, step=self.step, epoch=self.epoch, batch=self.batch, manifest=self.table, slot=self.slot
        )

    @property
    def position(self) -> tuple[int, int, int]:
        """Where it stands."""
        return self.step, self.epoch, self.batch


Place: TypeAlias = Kept | Entry


class Open(msgspec.Struct, frozen=True):
    """One that was ordered and has no end yet."""

    id: str
    slot: int
    branch: int
    cause: Cause
    orders: int = 0


class Snapshots(msgspec.Struct, frozen=True):
    """Slice of RunState: the living ones in the order they were taken. `last_step`, `last_epoch`: as of the last order.

    `fresh`: none was ordered since the ring was opened, or since a rollback left none. `off`: why there are none.
    """

    begun: int = 0
    ring: sn.Ring | None = None
    off: str = ""
    open: Open | None = None
    kept: tuple[Kept, ...] = ()
    branch: int = 0
    fresh: bool = False
    last_step: int = 0
    last_epoch: int = 0
    unhealthy_step: int = 0

    @property
    def next_id(self) -> str:
        """The name of the next one; never used twice."""
        return f"s{self.begun + 1:06d}"

    @property
    def promoted(self) -> tuple[Kept, ...]:
        """Those a rollback may use, the oldest first."""
        return tuple(one for one in self.kept if one.promoted)


def _daemon_started(s: Snapshots, _: run.DaemonStarted, __: Cause) -> Snapshots:
    # One that was under way is owed its end.
    return Snapshots(begun=s.begun, branch=s.branch, open=s.open)


def _opened(s: Snapshots, e: sn.SnapshotRingOpened, _: Cause) -> Snapshots:
    return replace(s, ring=sn.Ring(e.slots, e.slot_bytes), off="", kept=(), fresh=True)


def _disabled(s: Snapshots, e: sn.FastTierDisabled, _: Cause) -> Snapshots:
    return replace(s, off=e.why)


def _begun(s: Snapshots, e: sn.SnapshotBegun, at: Cause) -> Snapshots:
    return replace(
        s,
        begun=s.begun + 1,
        open=Open(e.id, e.slot, e.branch, at, e.orders),
        kept=tuple(one for one in s.kept if one.slot != e.slot),
        fresh=False,
        last_epoch=e.epoch_finished,
    )


def _taken(s: Snapshots, e: sn.SnapshotTaken, at: Cause) -> Snapshots:
    begun_seq = s.open.cause.seq if s.open else at.seq
    kept = Kept(e.id, e.slot, e.step, e.epoch, e.batch, e.branch, e.table, begun_seq, e.step, orders=e.orders)
    # Taken while the run went back behind it: nobody's.
    living = (*s.kept, kept)[-SLOTS_MAX:] if e.branch == s.branch else s.kept
    return replace(s, open=None, kept=living, last_step=e.step)


def _ended(s: Snapshots, _: Event, __: Cause) -> Snapshots:
    return replace(s, open=None)


def _promoted(s: Snapshots, e: sn.SnapshotPromoted, _: Cause) -> Snapshots:
    return replace(s, kept=tuple(replace(one, promoted=True) if one.id == e.id else one for one in s.kept))


def _rejected(s: Snapshots, e: sn.SnapshotRejected, _: Cause) -> Snapshots:
    return replace(s, kept=tuple(one for one in s.kept if one.id != e.id))


def _unhealthy(s: Snapshots, e: det.InstabilityDetected, _: Cause) -> Snapshots:
    """Whatever is being watched is watched anew."""
    watched = tuple(one if one.promoted else replace(one, watched_from=max(one.watched_from, e.step)) for one in s.kept)
    return replace(s, kept=watched, unhealthy_step=e.step)


def _rolled_back(s: Snapshots, e: rb.RolledBack, _: Cause) -> Snapshots:
    """What lies behind the fork is gone; of one at the very same place only the target itself is known to be the same."""
    fork = (e.step, e.epoch, e.batch)
    kept = tuple(one for one in s.kept if one.position < fork or one.id == e.checkpoint)
    watched = tuple(one if one.promoted else replace(one, watched_from=e.step) for one in kept)
    return replace(
        s,
        branch=e.branch,
        kept=watched,
        fresh=s.ring is not None and not kept,
        last_step=e.step,
        last_epoch=storable(min(s.last_epoch, e.epoch - 1)),
    )


APPLY: Final[ApplyTable] = {
    run.DaemonStarted: _daemon_started,
    sn.SnapshotRingOpened: _opened,
    sn.FastTierDisabled: _disabled,
    sn.SnapshotBegun: _begun,
    sn.SnapshotTaken: _taken,
    sn.SnapshotAborted: _ended,
    sn.SnapshotPromoted: _promoted,
    sn.SnapshotRejected: _rejected,
    det.InstabilityDetected: _unhealthy,
    rb.RolledBack: _rolled_back,
}


def pending(state: RunState, why: str) -> tuple[Event, ...]:
    """The end that one is owed whose trainer is gone."""
    begun = state.snapshots.open
    if begun is None:
        return ()
    return (sn.SnapshotAborted(id=begun.id, why=why, cause=begun.cause.seq, root=begun.cause.root),)


# -- the ring ------------------------------------------------------------------------------------------------------------


def decide_size(state: RunState, report: sn.SnapshotSizeReport) -> Decision:
    """The trainer says what one needs; the daemon has the memory, or makes it."""
    s, policy = state.snapshots, state.run.policy
    if s.ring is not None:
        return NOTHING if report.least <= s.ring.slot_bytes else _outgrown(s, report.least)
    if s.off:
        return NOTHING
    if policy.snapshot_slots < SLOTS_MIN:
        return _off("it is switched off (rollback.fast_path_enabled, rollback.checkpoint_cache_size)", report.size)
    slots = min(policy.snapshot_slots, SLOTS_MAX)
    return Decision((), (sn.PrepareRing(slot_bytes=report.size, slots=slots, memory=policy.snapshot_memory),))


def _outgrown(s: Snapshots, size: int) -> Decision:
    """A memory file that two processes map never changes its size; the next daemon makes a larger one."""
    if s.off or s.ring is None:
        return NOTHING
    return _off(
        f"a snapshot needs {size} bytes now, a slot has {s.ring.slot_bytes}; the next start makes them larger", size
    )


def _off(why: str, size: int) -> Decision:
    return Decision((sn.FastTierDisabled(why=why, size=size),))


def decide_prepared(state: RunState, given: RingPrepared) -> Decision:
    """The memory is there, or not enough of it."""
    if state.snapshots.ring is not None or state.snapshots.off:
        return NOTHING
    if given.slots < SLOTS_MIN:
        return _off(given.why or f"there is memory for {given.slots} snapshots", given.slot_bytes)
    opened = Decision((sn.SnapshotRingOpened(slots=given.slots, slot_bytes=given.slot_bytes),))
    # A trainer that is not built yet hears of it with its order to train.
    return opened + shown(state, sn.Ring(given.slots, given.slot_bytes)) if state.trainer.ready else opened


def shown(state: RunState, ring: sn.Ring | None = None) -> Decision:
    """To a trainer that is built: how its memory is divided."""
    ring = ring or state.snapshots.ring
    return Decision((), (sn.UseRing(ring=ring),)) if ring is not None and state.trainer.alive else NOTHING


# -- taking --------------------------------------------------------------------------------------------------------------


def concerned(state: RunState, step: int) -> bool:
    """Whether a record of `step` promotes one, or makes one due: on the way of every step, so asked before it is folded.

    What else is recorded with a step may hinder that, and never brings it about.
    """
    s = state.snapshots
    if s.ring is None or s.off:
        return False
    return _is_due(state, step) or any(_is_proven(state, one, step) for one in s.kept)


def _is_due(state: RunState, step: int) -> bool:
    s, every = state.snapshots, state.run.policy.snapshot_every
    return s.open is None and (s.fresh or (every > 0 and step - s.last_step >= every))


def _is_proven(state: RunState, one: Kept, step: int) -> bool:
    return not one.promoted and step - one.watched_from >= state.run.policy.snapshot_watch


def after_step(state: RunState) -> Decision:
    """Behind a recorded step: what is promoted, and is one due?"""
    step = state.progress.step
    if not concerned(state, step):
        return NOTHING
    events = tuple(sn.SnapshotPromoted(id=one.id) for one in state.snapshots.kept if _is_proven(state, one, step))
    return Decision(events) + (take(state) if _is_due(state, step) else NOTHING)


def after_epoch(state: RunState) -> Decision:
    """Behind an epoch's recorded end, where they are taken once an epoch."""
    is_due = state.run.policy.snapshot_every == 0 and state.progress.epoch_finished > state.snapshots.last_epoch
    return take(state) if is_due else NOTHING


def take(state: RunState) -> Decision:
    """Order one, where the state is healthy, nothing hinders it and a slot may be overwritten."""
    s = state.snapshots
    is_quiet = state.run.phase is Phase.RUNNING and state.rerun.open is None and state.rollbacks.open is None
    if s.ring is None or s.off or s.open is not None or not is_quiet or state.run.pause is not None:
        return NOTHING
    slot = _free_slot(s, s.ring.slots)
    if slot is None or (s.unhealthy_step and s.unhealthy_step >= state.progress.step):
        return NOTHING
    branch, ended = state.progress.branch, state.progress.epoch_finished
    begun = sn.SnapshotBegun(id=s.next_id, slot=slot, branch=branch, epoch_finished=ended, orders=state.rates.acted)
    return Decision((begun,), (sn.TakeSnapshot(id=begun.id, slot=slot),))


def _free_slot(s: Snapshots, slots: int) -> int | None:
    """One that holds nothing, else the oldest that may go; None where all must stay."""
    held = {one.slot for one in s.kept}
    free = next((slot for slot in range(slots) if slot not in held), None)
    if free is not None:
        return free
    stays = {one.slot for one in s.promoted[-1:]} | {
        one.slot for one in s.kept if not one.promoted and one is _watched(s)
    }
    return next((one.slot for one in s.kept if one.slot not in stays), None)


def _watched(s: Snapshots) -> Kept | None:
    """The one that is promoted next."""
    return next((one for one in s.kept if not one.promoted), None)


def decide_taken(state: RunState, report: sn.SnapshotTakenReport) -> Decision:
    """It is there; but a step that was found unhealthy meanwhile is none to come back to."""
    begun = state.snapshots.open
    if begun is None or begun.id != report.id:
        return NOTHING
    at = begun.cause
    found = state.snapshots.unhealthy_step
    why = f"step {found} was not healthy" if found and found >= report.step else ""
    if report.orders < begun.orders:
        # At the end of an epoch that had ended before: a start from here would have to look for the others further back.
        why = f"it holds {report.orders} of {begun.orders} orders of rates that had acted"
    if why:
        return Decision((sn.SnapshotAborted(id=report.id, why=why, cause=at.seq, root=at.root),))
    taken = sn.SnapshotTaken(
        id=report.id,
        slot=begun.slot,
        step=report.step,
        epoch=report.epoch,
        batch=report.batch,
        branch=begun.branch,
        size=report.size,
        table=report.table,
        xxh3=report.xxh3,
        state=report.state,
        orders=report.orders,
        held_s=report.held_s,
        seconds=report.seconds,
        cause=at.seq,
        root=at.root,
    )
    return Decision((taken,))


def newest_beyond(state: RunState, checkpoint: Entry | None) -> Kept | None:
    """The newest one, where it is newer than `checkpoint`, or there is none; not where the end of an epoch that is still to be
    kept lies between.
    """
    newest = state.snapshots.kept[-1] if state.snapshots.kept else None
    if checkpoint is None:
        return newest
    owed = limit_rules.epoch_to_keep(state)
    if newest is None or newest.position <= (checkpoint.step, checkpoint.epoch, checkpoint.batch):
        return None
    return None if checkpoint.epoch <= owed < newest.epoch else newest


def looked_at(state: RunState) -> Decision:
    """Behind a trainer's death: what the next one would begin from is compared while that one is built.

    It compares that itself before it begins: so nobody waits for this, and what differs is out of its way all the sooner.
    """
    found = newest_beyond(state, state.checkpoints.newest)
    if found is None:
        return NOTHING
    return Decision((), (sn.VerifySnapshot(id=found.id, slot=found.slot, table=found.table),))


def decide_differs(state: RunState, given: SnapshotDiffers) -> Decision:
    """It is gone, unless a trainer has been told of it: that one finds the same, and says so."""
    is_told = state.trainer.alive and state.trainer.ready
    if is_told or find(state, given.id) is None:
        return NOTHING
    return Decision((sn.SnapshotRejected(id=given.id, why=given.why),))


def find(state: RunState, id_: str) -> Kept | None:
    """The one of that name."""
    return next((one for one in state.snapshots.kept if one.id == id_), None)


def place(state: RunState, id_: str) -> Place | None:
    """The snapshot, or the committed checkpoint, of that name."""
    return find(state, id_) or next((one for one in state.checkpoints.catalogue if one.id == id_), None)


def decide_failed(state: RunState, report: sn.SnapshotFailedReport) -> Decision:
    """There is none."""
    begun = state.snapshots.open
    if begun is None or begun.id != report.id:
        return NOTHING
    at = begun.cause
    return Decision((sn.SnapshotAborted(id=report.id, why=report.why, cause=at.seq, root=at.root),))
