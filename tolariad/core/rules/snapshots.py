"""The rules for snapshots: their memory, when one is taken, what its report leads to, when one is promoted."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(
    st.HasRun,
    st.HasProgress,
    st.HasCheckpoints,
    st.HasTrainer,
    st.HasBoundary,
    st.HasRollbacks,
    st.HasSnapshots,
    st.HasHealth,
    Protocol,
):
    """The slices that the rules of snapshots read."""


# Without a configured cadence, snapshots within an epoch are at least so far apart. Each makes four events, and a
# rollback over half a minute repeats little.
LEAST_S: Final = 30.0
# Nine hours.
_DOUBLINGS_MAX: Final = 10


# -- the memory --------------------------------------------------------------------------------------------------------


def sized(state: Reads, report: m.SnapshotSizeReport, _: At[Reads]) -> Decision | None:
    """Order the memory for snapshots, now that the trainer reports their size; or disable the fast tier."""
    s, policy = state.snapshots, state.run.policy
    if s.ring is not None:
        # A memory file that two processes map never changes its size. The next daemon makes a larger one.
        holds, size = s.ring.slot_bytes, report.least
        why = f"a snapshot needs {size} bytes now, a slot has {holds}; the next start makes them larger"
        return None if size <= holds or s.off else _off(why, size)
    if s.off:
        return None
    if policy.snapshot_slots < st.SNAPSHOT_SLOTS_MIN:
        return _off("it is switched off (rollback.fast_path_enabled, rollback.checkpoint_cache_size)", report.size)
    slots = min(policy.snapshot_slots, st.SNAPSHOT_SLOTS_MAX)
    return Decision((), (m.PrepareRing(slot_bytes=report.size, slots=slots, memory=policy.snapshot_memory),))


def _off(why: str, size: int) -> Decision:
    return Decision((m.FastTierDisabled(why=why, size=size),))


def prepared(state: Reads, given: m.RingPrepared, _: At[Reads]) -> Decision | None:
    """Record that the memory is ready, or that there is too little of it."""
    if state.snapshots.ring is not None or state.snapshots.off:
        return None
    if given.slots < st.SNAPSHOT_SLOTS_MIN:
        return _off(given.why or f"there is memory for {given.slots} snapshots", given.slot_bytes)
    return Decision((m.SnapshotRingOpened(slots=given.slots, slot_bytes=given.slot_bytes),))


def send_ring(state: Reads, _: m.SnapshotRingOpened, __: At[Reads]) -> Decision | None:
    """Tell a trainer that is built how the memory is divided. Any other gets this with its order to train."""
    return Decision((), q.ring_order(state)) if state.trainer.ready else None


# -- taking one --------------------------------------------------------------------------------------------------------


def after_step(state: Reads, event: m.StepCompleted, _: At[Reads]) -> Decision | None:
    """After a step: promote the snapshots that enough healthy steps followed, and take one if it is due."""
    s = state.snapshots
    if s.ring is None or s.off:
        return None
    promoted = tuple(m.SnapshotPromoted(id=one.id) for one in s.kept if _is_proven(state, one, event.step))
    if s.open is not None or not (s.fresh or _is_due(s, state.run.policy, event)):
        return Decision(promoted) if promoted else None
    return Decision(promoted) + _take(state)


def _is_due(s: st.Snapshots, policy: m.Policy, event: m.StepCompleted) -> bool:
    """Return whether a snapshot is due within an epoch. The time is that of the step's event, so it is recorded."""
    steps, seconds = policy.snapshot_every, policy.snapshot_every_s
    if steps and event.step - s.last_step >= steps:
        return True
    passed_s = (event.mono - s.last_mono) / 1e9
    if seconds:
        return passed_s >= seconds
    if steps or not policy.snapshot_share:
        return False
    # Data that can stop at epochs' ends only makes every snapshot within them fail.
    least_s = LEAST_S * (1 << min(s.in_vain, _DOUBLINGS_MAX))
    return passed_s >= max(least_s, s.cost_s / policy.snapshot_share)


def _is_proven(state: Reads, one: st.KeptSnapshot, step: int) -> bool:
    return not one.promoted and step - one.watched_from >= state.run.policy.snapshot_watch


def after_epoch(state: Reads, event: m.EpochFinished, _: At[Reads]) -> Decision | None:
    """After an epoch that is not the last: take a snapshot if one is due per epoch."""
    if state.run.phase in (st.Phase.STOPPING, st.Phase.ROLLING_BACK) or q.is_last_epoch(state, event.epoch):
        return None
    by_epoch = state.run.policy.snapshot_every == 0 and state.run.policy.snapshot_every_s == 0
    return _take(state) if by_epoch and event.epoch > state.snapshots.last_epoch else None


def _take(state: Reads) -> Decision:
    """Order a snapshot if the state is healthy, nothing else is under way and a slot may be overwritten."""
    s = state.snapshots
    is_quiet = state.run.phase is st.Phase.RUNNING and state.progress.rerun is None and state.rollbacks.open is None
    if s.ring is None or s.off or s.open is not None or not is_quiet or state.run.pause is not None:
        return Decision()
    written = {one.copy_of for one in state.checkpoints.open}
    slot = _free_slot(s, s.narrow if state.overruns.memory is not None else range(s.ring.slots), written)
    if slot is None or (s.unhealthy_step and s.unhealthy_step >= state.progress.step):
        return Decision()
    begun = m.SnapshotBegun(
        id=s.next_id,
        slot=slot,
        branch=state.progress.branch,
        epoch_finished=state.progress.epoch_finished,
        orders=state.boundary.acted,
        step=state.progress.step,
    )
    return Decision((begun,), (m.TakeSnapshot(id=begun.id, slot=slot),))


def _free_slot(s: st.Snapshots, usable: Sequence[int], written: Container[str]) -> int | None:
    """Return an empty slot, else the slot of the oldest snapshot that may go; None if all must stay.

    `written`: the snapshots that are being written to disk.
    """
    held = {one.slot for one in s.kept}
    free = next((slot for slot in usable if slot not in held), None)
    if free is not None:
        return free
    may_go = (one for one in s.kept if one not in s.pinned and one.id not in written)
    return next((one.slot for one in may_go if one.slot in usable), None)


# -- what becomes of one -----------------------------------------------------------------------------------------------


def taken(state: Reads, report: m.SnapshotTakenReport, _: At[Reads]) -> Decision | None:
    """Record the snapshot, or abort it if a step up to its own was found unhealthy meanwhile."""
    begun = state.snapshots.open
    if begun is None or begun.id != report.id:
        return None
    found = state.snapshots.unhealthy_step
    why = f"step {found} was not healthy" if found and found >= report.step else ""
    if report.orders < begun.orders:
        # It was taken at the end of an epoch that had ended before. A start from it would have to find the missing
        # orders further back in the journal.
        why = f"it holds {report.orders} of {begun.orders} boundary orders that had acted"
    if why:
        return Decision((m.SnapshotAborted(id=report.id, why=why).caused_by(begun.cause),))
    return Decision((m.SnapshotTaken.of(report, slot=begun.slot, branch=begun.branch).caused_by(begun.cause),))


def given_up(state: Reads, report: m.SnapshotFailedReport, _: At[Reads]) -> Decision | None:
    """Record that the snapshot was not taken."""
    begun = state.snapshots.open
    if begun is None or begun.id != report.id:
        return None
    return Decision((m.SnapshotAborted.of(report).caused_by(begun.cause),))


def verify_next(state: Reads, _: m.TrainerDied | m.TrainerEnded | m.SnapshotRejected, __: At[Reads]) -> Decision | None:
    """No trainer is built: verify the snapshot that the next one would begin from.

    The trainer verifies it again before it begins. Nothing waits for this check; it only finds a damaged snapshot
    sooner.
    """
    if state.trainer.takes_orders:
        return None
    found = q.newest_beyond(state, state.checkpoints.newest)
    if found is None:
        return None
    return Decision((), (m.VerifySnapshot(id=found.id, slot=found.slot, table=found.table),))


def differs(state: Reads, given: m.SnapshotDiffers, _: At[Reads]) -> Decision | None:
    """Reject the snapshot, unless a trainer has been told of it: that one finds the damage itself and reports it."""
    if state.trainer.takes_orders or state.snapshots.find(given.id) is None:
        return None
    return Decision((m.SnapshotRejected(id=given.id, why=given.why),))
