"""The rules for checkpoints: when one is begun, what its report leads to, when one is promoted or removed.

Promises: every checkpoint that was begun ends exactly once, even if its trainer or its daemon dies.
"""

from __future__ import annotations

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
    st.HasHealth,
    st.HasRollbacks,
    st.HasSnapshots,
    st.HasPruning,
    Protocol,
):
    """The slices that the rules of checkpoints read."""


# How often the run's first or last checkpoint is ordered, if the disk has space and fails all the same.
NEEDED_ATTEMPTS: Final = 3

# -- beginning one -----------------------------------------------------------------------------------------------------


def _begin(state: Reads, reason: m.CheckpointReason, cause: m.Cause | None = None) -> Decision:
    """Order one. `cause`: the order that it belongs to, if that is an older event than the one reacted to."""
    begun, order = q.checkpoint_begun(state, reason)
    return Decision((begun.caused_by(cause),), (order,))


def first(state: Reads, _: m.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """A trainer is built: take the first checkpoint of the run, or take one at once if none is usable any more."""
    if not state.checkpoints.catalogue and state.progress.step == 0:
        return _begin(state, m.CheckpointReason.START)
    return None if state.run.phase is st.Phase.FAILED else _instead_of_all(state)


def instead_of_unusable(state: Reads, _: m.CheckpointUnusableReport, __: At[Reads]) -> Decision | None:
    """The trainer begins elsewhere: if no checkpoint is usable any more, take one at once."""
    return None if state.run.phase is st.Phase.FAILED else _instead_of_all(state)


def instead_of_refused(
    state: Reads, report: m.RollbackRefusedReport | m.StrategyVoted, at: At[Reads]
) -> Decision | None:
    """A rollback was given up and training goes on: if no checkpoint is usable any more, take one at once."""
    was_given_up = at.was.rollbacks.open is not None and state.rollbacks.open is None
    return _instead_of_all(state) if was_given_up and not report.restored and not state.run.is_halted else None


def _instead_of_all(state: Reads) -> Decision | None:
    """Take one at once if no other is usable and none is being written."""
    is_needed = state.checkpoints.newest is None and not state.checkpoints.open and state.disk.low is None
    return _begin(state, m.CheckpointReason.INTERVAL) if is_needed else None


def after_interval(state: Reads, _: m.StepCompleted, at: At[Reads]) -> Decision | None:
    """After a step: take one if the interval is over, unless a limit ends the training."""
    if not q.interval_is_over(state, at.now.mono) or state.run.phase is not st.Phase.RUNNING or state.limits.reached:
        return None
    return _begin(state, m.CheckpointReason.INTERVAL)


def after_epoch(state: Reads, event: m.EpochFinished, at: At[Reads]) -> Decision | None:
    """After an epoch: keep it if it is the best, else take one every N epochs.

    The last epoch's is taken at the end of training.
    """
    if state.run.phase in (st.Phase.STOPPING, st.Phase.ROLLING_BACK) or q.is_last_epoch(state, event.epoch):
        return None
    if q.epoch_to_keep(state) == event.epoch:
        return _begin(state, m.CheckpointReason.BEST)
    return _begin(state, m.CheckpointReason.EPOCH) if q.due_after_epoch(state, event.epoch, at.now.mono) else None


def of_epoch_again(state: Reads, report: m.EpochReport, at: At[Reads]) -> Decision | None:
    """An epoch ended again in a re-run: keep it if it is the best and no checkpoint holds it."""
    is_again = report.epoch <= at.was.progress.epoch_finished
    return _begin(state, m.CheckpointReason.BEST) if is_again and report.epoch == q.epoch_to_keep(state) else None


def after_validation(state: Reads, event: m.ValidationFinished, _: At[Reads]) -> Decision | None:
    """After a validation within an epoch: keep its place if it is the best."""
    if not event.batch or state.run.phase in (st.Phase.STOPPING, st.Phase.ROLLING_BACK, st.Phase.FAILED):
        return None
    return _begin(state, m.CheckpointReason.BEST) if q.step_to_keep(state) == event.step else None


def of_validation_again(state: Reads, report: m.ValidationReport, at: At[Reads]) -> Decision | None:
    """The best validation within an epoch was reached again in a re-run: keep its place if no checkpoint holds it."""
    is_owed = q.is_best_again(at.was, report) and q.step_to_keep(state) == report.step
    return _begin(state, m.CheckpointReason.BEST) if is_owed else None


def last(state: Reads, _: m.TrainingEndedReport, at: At[Reads]) -> Decision | None:
    """Training has ended: take the run's last checkpoint."""
    return _begin(state, m.CheckpointReason.END) if q.is_training_over(at.was) else None


def ordered(state: Reads, _: m.CheckpointRequested, __: At[Reads]) -> Decision:
    """Take the checkpoint that an operator ordered."""
    return _begin(state, m.CheckpointReason.ORDERED)


def of_stop(state: Reads, event: m.StopRequested, at: At[Reads]) -> Decision | None:
    """A stop was ordered while the trainer stands at a boundary: save it there."""
    if not q.stops_at_boundary(at.was, event.mode) or not state.trainer.held:
        return None
    return _of_stop(state, is_rerun=state.progress.rerun is not None)


def of_stop_held(state: Reads, report: m.HeldReport, _: At[Reads]) -> Decision | None:
    """The trainer has reached the boundary that a stop waits for: save it there."""
    return _of_stop(state, is_rerun=report.rerunning) if state.run.phase is st.Phase.STOPPING else None


def _of_stop(state: Reads, *, is_rerun: bool) -> Decision:
    """Take a last checkpoint, unless a re-run is cut short, the newest one is of this step, or space is low."""
    newest = state.checkpoints.newest
    is_saved = newest is not None and newest.step == state.progress.step
    if is_rerun or state.disk.low is not None or is_saved:
        return Decision((), (m.ExitTrainer(),))
    order = state.run.stop
    return _begin(state, m.CheckpointReason.STOP, order.cause if order else None)


# -- what becomes of one -----------------------------------------------------------------------------------------------


def written(state: Reads, report: m.CheckpointWrittenReport, _: At[Reads]) -> Decision:
    """Commit the checkpoint: its files are on disk."""
    order = next((one for one in state.checkpoints.open if one.id == report.id), None)
    if order is None:
        return _nobody_ordered(state, report.id)
    # The run may have left this epoch's branch meanwhile. The checkpoint is the best only if it lies on the current
    # one.
    is_left = order.is_left((report.step, report.epoch, report.batch), report.orders)
    committed = m.CheckpointCommitted.of(
        report,
        size=sum(piece.size for piece in report.pieces),
        branch=order.branch,
        environment=state.progress.environment,
        best=q.is_best(state, report) and not is_left,
    )
    return Decision((committed.caused_by(order.cause),))


def given_up(state: Reads, report: m.CheckpointFailedReport, _: At[Reads]) -> Decision:
    """Abort the checkpoint: the trainer could not write it."""
    order = next((one for one in state.checkpoints.open if one.id == report.id), None)
    if order is None:
        return _nobody_ordered(state, report.id)
    return Decision((m.CheckpointAborted.of(report).caused_by(order.cause),))


def _nobody_ordered(state: Reads, id_: str) -> Decision:
    return Decision((state.trainer.refused(f"checkpoint {id_} was reported, but was not ordered"),))


def needed_one_failed(state: Reads, event: m.CheckpointAborted, at: At[Reads]) -> Decision | None:
    """Fail the run if its first or last checkpoint could not be written: it can neither begin nor end without them.

    Before that it is ordered again, under another id, while the trainer has the state. A low disk is waited for.
    """
    reason = at.was.checkpoints.reason_of(event.id)
    if not state.trainer.alive or reason not in (m.CheckpointReason.START, m.CheckpointReason.END):
        return None
    if state.disk.low is not None or state.run.phase is st.Phase.PAUSED:
        return None
    if state.checkpoints.needed_failures < NEEDED_ATTEMPTS:
        return _begin(state, reason)
    why = f"the {reason.value} checkpoint could not be written: {event.why}"
    return Decision((m.RunFailed(kind=m.FailureKind.STORAGE, why=why),))


def needed_after_wait(state: Reads, _: m.RunResumed, __: At[Reads]) -> Decision | None:
    """The run goes on after a pause: order its first or last checkpoint again if that one was given up meanwhile."""
    if not state.checkpoints.needed_failures or not state.trainer.alive or state.disk.low is not None:
        return None
    return _begin(state, m.CheckpointReason.END) if q.is_training_over(state) else _instead_of_all(state)


def last_is_there(state: Reads, event: m.CheckpointCommitted, at: At[Reads]) -> Decision | None:
    """Complete the run: its last checkpoint is committed."""
    if at.was.checkpoints.reason_of(event.id) is not m.CheckpointReason.END:
        return None
    completed = m.RunCompleted(step=event.step, epochs=state.progress.epoch_finished, checkpoint=event.id)
    return Decision((completed,), (m.ExitTrainer(),))


def stop_is_saved(state: Reads, event: m.CheckpointCommitted | m.CheckpointAborted, at: At[Reads]) -> Decision | None:
    """End the trainer: the checkpoint of the stop is committed, or could not be written."""
    is_of_stop = at.was.checkpoints.reason_of(event.id) is m.CheckpointReason.STOP
    if not is_of_stop or state.run.phase is not st.Phase.STOPPING or not state.trainer.alive:
        return None
    return Decision((), (m.ExitTrainer(),))


def unusable(state: Reads, report: m.CheckpointUnusableReport, _: At[Reads]) -> Decision:
    """Reject the checkpoint that the trainer was to begin from: it is damaged or has another shape."""
    parent = state.run.parent
    if not report.id and parent is not None:
        what = "the file" if parent.file else "checkpoint"
        why = f"{what} {parent.words} cannot be begun from: {report.file}: {report.why}"
        return Decision((m.RunFailed(kind=m.FailureKind.CONFIGURATION, why=why),))
    return Decision((q.rejected(state, report.id, report, state.progress.environment),))


def promoted(state: Reads, event: m.StepCompleted, _: At[Reads]) -> Decision | None:
    """After a step: promote the checkpoints that enough healthy steps followed."""
    held = state.checkpoints
    # The oldest comes first, and no other is proven before it.
    if not held.watched or not _is_proven(state, held.watched[0], event.step):
        return None
    proven = (one for one in held.watched if _is_proven(state, one, event.step))
    return Decision(tuple(m.CheckpointPromoted(id=one.id) for one in proven))


def _is_proven(state: Reads, one: st.Watched, step: int) -> bool:
    return step - max(one.step, state.checkpoints.watch_from) >= state.run.policy.snapshot_watch


def beyond_target(state: Reads, event: m.RollbackBegun | m.RollbackEscalated, _: At[Reads]) -> Decision | None:
    """A rollback begins: abort every open checkpoint of a later step.

    The trainer answers with a CheckpointFailedReport for each. One that was completed a moment earlier is committed on
    the branch on which it was begun.
    """
    if not state.checkpoints.open or not state.trainer.alive or state.rollbacks.open is None:
        return None
    return Decision((), (m.AbortCheckpoints(beyond_step=event.to_step, why="a rollback began"),))


def name_newest(state: Reads, _: m.Opened | m.CheckpointCommitted, __: At[Reads]) -> Decision | None:
    """Let the link lead to the newest checkpoint that training may begin from."""
    newest = state.checkpoints.newest
    return Decision((), (m.NameNewest(id=newest.id),)) if newest is not None else None


# -- removing them -----------------------------------------------------------------------------------------------------


def retain(
    state: Reads,
    what: m.Opened | m.Reconfigured | m.CheckpointCommitted | m.CheckpointAborted,
    at: At[Reads],
) -> Decision | None:
    """Begin to remove what is to go, and record if what must stay exceeds the quota."""
    if isinstance(what, m.CheckpointAborted) and not state.trainer.alive:
        return None  # it ended with its trainer, so no checkpoint is larger or older than before
    held, policy = state.checkpoints, state.run.policy
    going = q.retention_plan(q.witnessed(held, policy, at.now.wall), policy, at.now.wall, q.wanted_checkpoints(state))
    events, effects = list[m.Event](), list[m.Effect]()
    for one in going[: q.REMOVALS_AT_ONCE]:
        events.append(m.CheckpointDeletionBegun(id=one.entry.id, why=one.why, size=one.entry.size))
        effects.append(m.DeleteCheckpoint(id=one.entry.id))
    left = q.used_bytes(held) - q.freed_bytes(going)
    if left > policy.quota and not held.exhausted:
        events.append(m.StorageExhausted(used=left, quota=policy.quota))
    elif left <= policy.quota and held.exhausted:
        events.append(m.StorageRelieved(used=left, quota=policy.quota))
    return Decision(tuple(events), tuple(effects))


def removed(state: Reads, given: m.CheckpointRemoved, _: At[Reads]) -> Decision | None:
    """Record that the checkpoint is removed, or that it could not be; the next checkpoint tries again."""
    begun = next((one for one in state.checkpoints.removing if one.id == given.id), None)
    if begun is None:
        return None
    if given.error:
        return Decision((m.CheckpointDeletionAborted(id=given.id, why=given.error).caused_by(begun.cause),))
    return Decision((m.CheckpointDeleted.of(given).caused_by(begun.cause),))


def abort_removals(state: Reads, _: m.Opened, __: At[Reads]) -> Decision | None:
    """Abort every open removal: the daemon that began it is gone. The next removal begins it again."""
    removing, why = state.checkpoints.removing, "the daemon ended"
    return Decision(tuple(m.CheckpointDeletionAborted(id=one.id, why=why).caused_by(one.cause) for one in removing))


def sweep(state: Reads, what: m.Opened | m.TrainerDied | m.TrainerEnded, at: At[Reads]) -> Decision | None:
    """Remove files on disk that belong to no checkpoint: of all ordered so far, only committed and open ones stay."""
    if not isinstance(what, m.Opened) and not at.was.checkpoints.open:
        return None
    if isinstance(what, m.TrainerDied) and what.reason is m.DeathReason.WITH_DAEMON:
        return None  # the start that records this death sweeps by itself
    held = state.checkpoints
    if not held.ordered:
        return None
    known = tuple(entry.id for entry in held.catalogue)
    return Decision((), (m.SweepCheckpoints(committed=known, highest=held.ordered),))
