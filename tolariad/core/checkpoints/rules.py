"""The rules for checkpoints: when one is begun, what its report leads to, when one is promoted or removed.

Promises: every checkpoint that was begun ends exactly once, even if its trainer or its daemon dies.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from tolariad.core.base import Cause, Effect, Event
from tolariad.core.boundary.slice import HasBoundary
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.ask import (
    REMOVALS_AT_ONCE,
    due_after_epoch,
    freed_bytes,
    interval_is_over,
    retention_plan,
    used_bytes,
    wanted_checkpoints,
    witnessed,
)
from tolariad.core.checkpoints.catalogue_slice import Watched
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.control import words as cv
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.health.ask import health_status
from tolariad.core.health.slice import HasHealth
from tolariad.core.inputs import CheckpointRemoved, Opened, Reconfigured
from tolariad.core.pruning.ask import phase_of
from tolariad.core.pruning.slice import HasPruning
from tolariad.core.rollback import target_ask as targets
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run import limit_ask as limits
from tolariad.core.run import words as rv
from tolariad.core.run.ask import stops_at_boundary
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.steps import words as sv
from tolariad.core.steps.slice import HasProgress
from tolariad.core.strategy.words import StrategyVoted
from tolariad.core.trainer import words as tv
from tolariad.core.trainer.slice import HasTrainer


class Reads(
    HasRun,
    HasProgress,
    HasCheckpoints,
    HasTrainer,
    HasBoundary,
    HasHealth,
    HasRollbacks,
    HasSnapshots,
    HasPruning,
    Protocol,
):
    """The slices that the rules of checkpoints read."""


# How often the run's first or last checkpoint is ordered, if the disk has space and fails all the same.
NEEDED_ATTEMPTS: Final = 3

# -- beginning one -----------------------------------------------------------------------------------------------------


def _begin(state: Reads, reason: ck.CheckpointReason, cause: Cause | None = None) -> Decision:
    """Order one. `cause`: the order that it belongs to, if that is an older event than the one reacted to."""
    begun = ck.CheckpointBegun(
        id=state.checkpoints.next_id,
        reason=reason,
        branch=state.progress.branch,
        epoch_finished=state.progress.epoch_finished,
        orders=state.boundary.acted,
    ).caused_by(cause)
    catalogue = state.checkpoints.catalogue
    order = ck.TakeCheckpoint(
        id=begun.id,
        reason=reason,
        branch=begun.branch,
        health=health_status(state),
        promoted=next((one.id for one in reversed(catalogue) if one.promoted and one.is_target), ""),
    )
    # Masks and compactions outlive `prune.enabled: false` at a later start.
    if state.run.policy.prune is not None or state.pruning.cycles:
        files = state.pruning.files
        newest = files[-1].file if files else ""
        order = replace(order, pruning_phase=phase_of(state), pruned=state.pruning.share, importance=newest)
    return Decision((begun,), (order,))


def first(state: Reads, _: tv.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """A trainer is built: take the first checkpoint of the run, or take one at once if none is usable any more."""
    if not state.checkpoints.catalogue and state.progress.step == 0:
        return _begin(state, ck.CheckpointReason.START)
    return None if state.run.phase is Phase.FAILED else _instead_of_all(state)


def instead_of_unusable(state: Reads, _: ck.CheckpointUnusableReport, __: At[Reads]) -> Decision | None:
    """The trainer begins elsewhere: if no checkpoint is usable any more, take one at once."""
    return None if state.run.phase is Phase.FAILED else _instead_of_all(state)


def instead_of_refused(
    state: Reads, report: rb.RollbackRefusedReport | StrategyVoted, at: At[Reads]
) -> Decision | None:
    """A rollback was given up and training goes on: if no checkpoint is usable any more, take one at once."""
    was_given_up = at.was.rollbacks.open is not None and state.rollbacks.open is None
    return _instead_of_all(state) if was_given_up and not report.restored and not state.run.is_halted else None


def _instead_of_all(state: Reads) -> Decision | None:
    """Take one at once if no other is usable and none is being written."""
    is_needed = state.checkpoints.newest is None and not state.checkpoints.open and state.disk.low is None
    return _begin(state, ck.CheckpointReason.INTERVAL) if is_needed else None


def after_interval(state: Reads, _: sv.StepCompleted, at: At[Reads]) -> Decision | None:
    """After a step: take one if the interval is over, unless a limit ends the training."""
    if not interval_is_over(state, at.now.mono) or state.run.phase is not Phase.RUNNING or state.limits.reached:
        return None
    return _begin(state, ck.CheckpointReason.INTERVAL)


def after_epoch(state: Reads, event: sv.EpochFinished, at: At[Reads]) -> Decision | None:
    """After an epoch: keep it if it is the best, else take one every N epochs.

    The last epoch's is taken at the end of training.
    """
    if state.run.phase in (Phase.STOPPING, Phase.ROLLING_BACK) or limits.is_last_epoch(state, event.epoch):
        return None
    if limits.epoch_to_keep(state) == event.epoch:
        return _begin(state, ck.CheckpointReason.BEST)
    return _begin(state, ck.CheckpointReason.EPOCH) if due_after_epoch(state, event.epoch, at.now.mono) else None


def of_epoch_again(state: Reads, report: sv.EpochReport, at: At[Reads]) -> Decision | None:
    """An epoch ended again in a re-run: keep it if it is the best and no checkpoint holds it."""
    is_again = report.epoch <= at.was.progress.epoch_finished
    return _begin(state, ck.CheckpointReason.BEST) if is_again and report.epoch == limits.epoch_to_keep(state) else None


def last(state: Reads, _: sv.TrainingEndedReport, at: At[Reads]) -> Decision | None:
    """Training has ended: take the run's last checkpoint."""
    return _begin(state, ck.CheckpointReason.END) if limits.is_training_over(at.was) else None


def ordered(state: Reads, _: cv.CheckpointRequested, __: At[Reads]) -> Decision:
    """Take the checkpoint that an operator ordered."""
    return _begin(state, ck.CheckpointReason.ORDERED)


def of_stop(state: Reads, event: cv.StopRequested, at: At[Reads]) -> Decision | None:
    """A stop was ordered while the trainer stands at a boundary: save it there."""
    if not stops_at_boundary(at.was, event.mode) or not state.trainer.held:
        return None
    return _of_stop(state, is_rerun=state.progress.rerun is not None)


def of_stop_held(state: Reads, report: cv.HeldReport, _: At[Reads]) -> Decision | None:
    """The trainer has reached the boundary that a stop waits for: save it there."""
    return _of_stop(state, is_rerun=report.rerunning) if state.run.phase is Phase.STOPPING else None


def _of_stop(state: Reads, *, is_rerun: bool) -> Decision:
    """Take a last checkpoint, unless a re-run is cut short, the newest one is of this step, or space is low."""
    newest = state.checkpoints.newest
    is_saved = newest is not None and newest.step == state.progress.step
    if is_rerun or state.disk.low is not None or is_saved:
        return Decision((), (tv.ExitTrainer(),))
    order = state.run.stop
    return _begin(state, ck.CheckpointReason.STOP, order.cause if order else None)


# -- what becomes of one -----------------------------------------------------------------------------------------------


def written(state: Reads, report: ck.CheckpointWrittenReport, _: At[Reads]) -> Decision:
    """Commit the checkpoint: its files are on disk."""
    order = next((one for one in state.checkpoints.open if one.id == report.id), None)
    if order is None:
        return _nobody_ordered(state, report.id)
    # The run may have left this epoch's branch meanwhile. The checkpoint is the best only if it lies on the current
    # one.
    is_left = order.is_left((report.step, report.epoch, report.batch), report.orders)
    committed = ck.CheckpointCommitted.of(
        report,
        size=sum(piece.size for piece in report.pieces),
        branch=order.branch,
        environment=state.progress.environment,
        best=limits.is_best(state, report) and not is_left,
    )
    return Decision((committed.caused_by(order.cause),))


def given_up(state: Reads, report: ck.CheckpointFailedReport, _: At[Reads]) -> Decision:
    """Abort the checkpoint: the trainer could not write it."""
    order = next((one for one in state.checkpoints.open if one.id == report.id), None)
    if order is None:
        return _nobody_ordered(state, report.id)
    return Decision((ck.CheckpointAborted.of(report).caused_by(order.cause),))


def _nobody_ordered(state: Reads, id_: str) -> Decision:
    return Decision((state.trainer.refused(f"checkpoint {id_} was reported, but was not ordered"),))


def needed_one_failed(state: Reads, event: ck.CheckpointAborted, at: At[Reads]) -> Decision | None:
    """Fail the run if its first or last checkpoint could not be written: it can neither begin nor end without them.

    Before that it is ordered again, under another id, while the trainer has the state. A low disk is waited for.
    """
    reason = at.was.checkpoints.reason_of(event.id)
    if not state.trainer.alive or reason not in (ck.CheckpointReason.START, ck.CheckpointReason.END):
        return None
    if state.disk.low is not None or state.run.phase is Phase.PAUSED:
        return None
    if state.checkpoints.needed_failures < NEEDED_ATTEMPTS:
        return _begin(state, reason)
    why = f"the {reason.value} checkpoint could not be written: {event.why}"
    return Decision((rv.RunFailed(kind=rv.FailureKind.STORAGE, why=why),))


def needed_after_wait(state: Reads, _: rv.RunResumed, __: At[Reads]) -> Decision | None:
    """The run goes on after a pause: order its first or last checkpoint again if that one was given up meanwhile."""
    if not state.checkpoints.needed_failures or not state.trainer.alive or state.disk.low is not None:
        return None
    return _begin(state, ck.CheckpointReason.END) if limits.is_training_over(state) else _instead_of_all(state)


def last_is_there(state: Reads, event: ck.CheckpointCommitted, at: At[Reads]) -> Decision | None:
    """Complete the run: its last checkpoint is committed."""
    if at.was.checkpoints.reason_of(event.id) is not ck.CheckpointReason.END:
        return None
    completed = rv.RunCompleted(step=event.step, epochs=state.progress.epoch_finished, checkpoint=event.id)
    return Decision((completed,), (tv.ExitTrainer(),))


def stop_is_saved(state: Reads, event: ck.CheckpointCommitted | ck.CheckpointAborted, at: At[Reads]) -> Decision | None:
    """End the trainer: the checkpoint of the stop is committed, or could not be written."""
    is_of_stop = at.was.checkpoints.reason_of(event.id) is ck.CheckpointReason.STOP
    if not is_of_stop or state.run.phase is not Phase.STOPPING or not state.trainer.alive:
        return None
    return Decision((), (tv.ExitTrainer(),))


def unusable(state: Reads, report: ck.CheckpointUnusableReport, _: At[Reads]) -> Decision:
    """Reject the checkpoint that the trainer was to begin from: it is damaged or has another shape."""
    parent = state.run.parent
    if not report.id and parent is not None:
        why = f"checkpoint {parent.checkpoint} of {parent.folder} cannot be begun from: {report.file}: {report.why}"
        return Decision((rv.RunFailed(kind=rv.FailureKind.CONFIGURATION, why=why),))
    return Decision((targets.rejected(state, report.id, report, state.progress.environment),))


def promoted(state: Reads, event: sv.StepCompleted, _: At[Reads]) -> Decision | None:
    """After a step: promote the checkpoints that enough healthy steps followed."""
    held = state.checkpoints
    # The oldest comes first, and no other is proven before it.
    if not held.watched or not _is_proven(state, held.watched[0], event.step):
        return None
    proven = (one for one in held.watched if _is_proven(state, one, event.step))
    return Decision(tuple(ck.CheckpointPromoted(id=one.id) for one in proven))


def _is_proven(state: Reads, one: Watched, step: int) -> bool:
    return step - max(one.step, state.checkpoints.watch_from) >= state.run.policy.snapshot_watch


def beyond_target(state: Reads, event: rb.RollbackBegun | rb.RollbackEscalated, _: At[Reads]) -> Decision | None:
    """A rollback begins: abort every open checkpoint of a later step.

    The trainer answers with a CheckpointFailedReport for each. One that was completed a moment earlier is committed on
    the branch on which it was begun.
    """
    if not state.checkpoints.open or not state.trainer.alive or state.rollbacks.open is None:
        return None
    return Decision((), (ck.AbortCheckpoints(beyond_step=event.to_step, why="a rollback began"),))


# -- removing them -----------------------------------------------------------------------------------------------------


def retain(
    state: Reads,
    what: Opened | Reconfigured | ck.CheckpointCommitted | ck.CheckpointAborted,
    at: At[Reads],
) -> Decision | None:
    """Begin to remove what is to go, and record if what must stay exceeds the quota."""
    if isinstance(what, ck.CheckpointAborted) and not state.trainer.alive:
        return None  # it ended with its trainer, so no checkpoint is larger or older than before
    held, policy = state.checkpoints, state.run.policy
    going = retention_plan(witnessed(held, policy, at.now.wall), policy, at.now.wall, wanted_checkpoints(state))
    events, effects = list[Event](), list[Effect]()
    for one in going[:REMOVALS_AT_ONCE]:
        events.append(ck.CheckpointDeletionBegun(id=one.entry.id, why=one.why, size=one.entry.size))
        effects.append(ck.DeleteCheckpoint(id=one.entry.id))
    left = used_bytes(held) - freed_bytes(going)
    if left > policy.quota and not held.exhausted:
        events.append(ck.StorageExhausted(used=left, quota=policy.quota))
    elif left <= policy.quota and held.exhausted:
        events.append(ck.StorageRelieved(used=left, quota=policy.quota))
    return Decision(tuple(events), tuple(effects))


def removed(state: Reads, given: CheckpointRemoved, _: At[Reads]) -> Decision | None:
    """Record that the checkpoint is removed, or that it could not be; the next checkpoint tries again."""
    begun = next((one for one in state.checkpoints.removing if one.id == given.id), None)
    if begun is None:
        return None
    if given.error:
        return Decision((ck.CheckpointDeletionAborted(id=given.id, why=given.error).caused_by(begun.cause),))
    return Decision((ck.CheckpointDeleted.of(given).caused_by(begun.cause),))


def abort_removals(state: Reads, _: Opened, __: At[Reads]) -> Decision | None:
    """Abort every open removal: the daemon that began it is gone. The next removal begins it again."""
    removing, why = state.checkpoints.removing, "the daemon ended"
    return Decision(tuple(ck.CheckpointDeletionAborted(id=one.id, why=why).caused_by(one.cause) for one in removing))


def sweep(state: Reads, what: Opened | tv.TrainerDied | tv.TrainerEnded, at: At[Reads]) -> Decision | None:
    """Remove files on disk that belong to no checkpoint: of all ordered so far, only committed and open ones stay."""
    if not isinstance(what, Opened) and not at.was.checkpoints.open:
        return None
    if isinstance(what, tv.TrainerDied) and what.reason is tv.DeathReason.WITH_DAEMON:
        return None  # the start that records this death sweeps by itself
    held = state.checkpoints
    if not held.ordered:
        return None
    known = tuple(entry.id for entry in held.catalogue)
    return Decision((), (ck.SweepCheckpoints(committed=known, highest=held.ordered),))
