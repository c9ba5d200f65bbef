"""Rules of rollbacks: orders, the protocol's next phase, its end.

PREPARE asks every participant whether it can go back, COMMIT restores them, CONFIRM compares what they hold. If no
trainer lives, the next one begins at the target, and that completes the rollback.
"""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Event, Refusal
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.catalogue_slice import CatalogueEntry
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.control import words as cv
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.inputs import TrainerIsGone
from tolariad.core.rollback import target_ask as targets
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.ask import may_begin, rollback_begun, rollback_begun_as
from tolariad.core.rollback.slice import HasRollbacks, OpenRollback
from tolariad.core.run.ask import pause_reached, spawn_trainer
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.seeds.slice import HasSeeds
from tolariad.core.snapshots.ask import Restorable, restorable
from tolariad.core.snapshots.slice import HasSnapshots
from tolariad.core.steps.slice import HasProgress
from tolariad.core.strategy import words as st
from tolariad.core.strategy.ask import awaits_vote
from tolariad.core.strategy.slice import HasStrategy
from tolariad.core.trainer import words as trainer
from tolariad.core.trainer.slice import HasTrainer


class Reads(
    HasRun, HasProgress, HasCheckpoints, HasTrainer, HasRollbacks, HasSnapshots, HasSeeds, HasStrategy, Protocol
):
    """The slices that the rules of rollbacks read."""


# -- orders ------------------------------------------------------------------------------------------------------------


def order(state: Reads, command: rb.Rollback) -> rb.RollbackRequested | Refusal:
    """Accept or refuse an operator's order. It begins at once, or after the re-run under way."""
    phase = state.run.phase
    if not may_begin(state) or state.rollbacks.asked is not None:
        at = "at its end, and its last checkpoint is being written" if state.checkpoints.is_ending else phase.value
        why = f"the run is {at}; a rollback needs one that is running, paused or frozen, and no other rollback"
        return Refusal("WrongPhase", why)
    if (ahead := _ahead(state, command)) is not None:
        return Refusal("Refused", ahead)
    target = targets.find_target(state, command)
    if isinstance(target, str):
        return Refusal("NotFound", target)
    is_named = command.to or command.epoch is not None or command.step is not None
    return rb.RollbackRequested(
        checkpoint=target.id,
        tier=command.tier or rb.Tier.FULL,
        step=target.step,
        otherwise=rb.RefusalPolicy.STAY if is_named else rb.RefusalPolicy.OLDER,
        epoch=target.epoch,
        batch=target.batch,
        given_up=max(0, state.progress.step - target.step),
    )


def _ahead(state: Reads, command: rb.Rollback) -> str | None:
    """Return a sentence if the order names a place that the run has not reached."""
    progress = state.progress
    here = f"the run is in epoch {max(1, progress.epoch)}, at step {progress.step}"
    if command.epoch is not None and command.epoch > max(1, progress.epoch):
        return f"epoch {command.epoch} is not reached yet: {here}; a rollback only goes back"
    if command.step is not None and command.step > progress.step:
        return f"step {command.step} is not reached yet: {here}; a rollback only goes back"
    return None


def begin_ordered(state: Reads, event: rb.RollbackRequested, _: At[Reads]) -> Decision | None:
    """Begin at once, unless a re-run is under way or a trainer is being built.

    An emergency's order waits until one trains.
    """
    is_built = state.trainer.alive and not state.trainer.began
    if event.otherwise is rb.RefusalPolicy.HALT or state.progress.rerun is not None or is_built:
        return None
    return _begin_asked(state)


def begin_waiting(state: Reads, _: ck.TrainingStarted | ck.RerunFinished, __: At[Reads]) -> Decision | None:
    """Begin the rollback that was ordered meanwhile: the re-run is over."""
    return None if state.progress.rerun is not None else _begin_asked(state)


def _begin_asked(state: Reads) -> Decision | None:
    asked = state.rollbacks.asked
    if asked is None or not may_begin(state):
        return None
    # A snapshot may be gone with its daemon. Orders of older versions do not have the step.
    target = _target(state, asked.checkpoint) or (targets.target_on_disk(state, asked.step) if asked.step else None)
    if target is not None:
        return Decision((rollback_begun(state, target, asked.why, asked.otherwise, asked.cause),))
    # End the order; otherwise no other rollback could ever be ordered.
    event = rollback_begun_as(state, asked)
    why = f"{asked.checkpoint} cannot be used any more, nor any checkpoint at or before step {asked.step}"
    return Decision((event, rb.RollbackAborted(rollback=event.rollback, why=why).caused_by(asked.cause)))


# -- the protocol ------------------------------------------------------------------------------------------------------


def prepare(state: Reads, _: rb.RollbackBegun | rb.RollbackEscalated, __: At[Reads]) -> Decision | None:
    """PREPARE: ask the trainer, if one lives."""
    opened = state.rollbacks.open
    target = None if opened is None else restorable(state, opened.checkpoint)
    if opened is None or target is None or not state.trainer.alive:
        return None
    return Decision((), (rb.PrepareRollback(rollback=opened.id, checkpoint=target.ref, tier=opened.tier),))


def without_trainer(state: Reads, _: rb.RollbackBegun, at: At[Reads]) -> Decision | None:
    """If no trainer lives, complete the rollback: the next trainer begins at the target."""
    opened, phase = state.rollbacks.open, at.was.run.phase
    target = None if opened is None else restorable(state, opened.checkpoint)
    if state.trainer.alive or opened is None or target is None:
        return None
    finished = _rolled_back(state, opened, target)
    if phase not in (Phase.PAUSED, Phase.FROZEN):
        return Decision((finished,))  # the next start is already under way
    if state.run.pause is not None:
        return Decision((finished, pause_reached(state, state.run.pause, target.step)))
    return Decision((finished,), (spawn_trainer(state),))


def _opened(
    state: Reads,
    report: rb.RollbackHeardReport
    | rb.RollbackPreparedReport
    | rb.RollbackRefusedReport
    | rb.RolledBackReport
    | st.StrategyVoted,
) -> OpenRollback | None:
    """Return the open rollback if the report belongs to it and to its present target, else None."""
    opened = state.rollbacks.open
    if opened is None or opened.id != report.rollback:
        return None
    return opened if getattr(report, "checkpoint", "") in ("", opened.checkpoint) else None


def heard(state: Reads, report: rb.RollbackHeardReport, _: At[Reads]) -> Decision | None:
    """Record that training has stopped for the rollback. Its deadline counts from here."""
    opened = _opened(state, report)
    if opened is None or opened.heard_mono:
        return None
    return Decision((rb.RollbackHeard(rollback=opened.id).caused_by(opened.cause),))


def prepared(state: Reads, report: rb.RollbackPreparedReport, _: At[Reads]) -> Decision | None:
    """COMMIT: all participants that answered can go back."""
    opened = _opened(state, report)
    if opened is None:
        return None
    event = rb.RollbackPrepared(
        rollback=opened.id, participants=report.participants, seconds=report.seconds, abstained=report.abstained
    )
    commit = () if awaits_vote(state) else (rb.CommitRollback(rollback=opened.id),)
    return Decision((event.caused_by(opened.cause),), commit)


def voted(state: Reads, event: st.StrategyVoted, at: At[Reads]) -> Decision | None:
    """Go on after the strategy's vote: to an older target if it refused, else to COMMIT if the trainer is prepared."""
    opened = state.rollbacks.open
    if opened is None:
        return None
    if event.vote is st.Vote.REFUSED:
        return refused(state, event, at)
    return Decision((), (rb.CommitRollback(rollback=opened.id),)) if opened.is_prepared else None


def finished(state: Reads, report: rb.RolledBackReport, _: At[Reads]) -> Decision | None:
    """CONFIRM: the trainer is at the target, and trains from there unless the run is paused."""
    opened = _opened(state, report)
    target = None if opened is None else restorable(state, opened.checkpoint)
    if opened is None or target is None:
        return None
    done = _rolled_back(state, opened, target, report)
    started = ck.TrainingStarted(incarnation=state.trainer.incarnation, step=target.step, checkpoint=target.id)
    return Decision((done, started), (cv.Hold(),) if state.run.pause is not None else ())


def refused(state: Reads, report: rb.RollbackRefusedReport | st.StrategyVoted, _: At[Reads]) -> Decision | None:
    """Reject the target and go on to an older one, unless the order named this one."""
    opened = _opened(state, report)
    if opened is None:
        return None
    # If a participant refused, the target is intact. Another one of the same step would hold the same state.
    gone: tuple[Event, ...] = ()
    if not isinstance(report, st.StrategyVoted) and not report.participant:
        gone = (targets.rejected(state, opened.checkpoint, report),)
    until = opened.to_step - 1 if report.participant else opened.to_step
    why = f"{opened.checkpoint} cannot be used: {report.file}: {report.why}"
    if (target := targets.target_instead(state, opened, until)) is not None:
        return Decision((_escalated(opened, target, why), *gone))
    aborted = rb.RollbackAborted(rollback=opened.id, why=f"checkpoint {why}").caused_by(opened.cause)
    if report.restored:
        # The trainer's previous state is overwritten: only a start from a checkpoint helps.
        incarnation = state.trainer.incarnation
        kill = trainer.KillTrainer(incarnation=incarnation, why="its rollback failed when it was restored")
        return Decision((aborted, *gone), (kill,))
    hold = (cv.Hold(),) if state.run.pause is not None else ()
    return Decision((aborted, *gone), (rb.AbortRollback(rollback=opened.id), *hold))


def complete_open(state: Reads, _: TrainerIsGone, __: At[Reads]) -> Decision | None:
    """Complete the open rollback without its trainer: the next one begins at the target."""
    opened = state.rollbacks.open
    if opened is None:
        return None
    target = _target(state, opened.checkpoint)
    if target is not None:
        return Decision((_rolled_back(state, opened, target),))
    if opened.tier is rb.Tier.FAST and (older := targets.target_on_disk(state, opened.to_step)) is not None:
        escalated = _escalated(opened, older, f"snapshot {opened.checkpoint} went with the daemon's memory")
        return Decision((escalated, _rolled_back(state, opened, older)))
    aborted = rb.RollbackAborted(rollback=opened.id, why="its target cannot be used any more")
    return Decision((aborted.caused_by(opened.cause),))


def _target(state: Reads, id_: str) -> Restorable | None:
    """Return the chosen target if it may still be used, else None."""
    found = restorable(state, id_)
    return None if isinstance(found, CatalogueEntry) and not found.is_target else found


def _escalated(opened: OpenRollback, target: CatalogueEntry, why: str) -> rb.RollbackEscalated:
    event = rb.RollbackEscalated(rollback=opened.id, checkpoint=target.id, to_step=target.step, why=why)
    return event.caused_by(opened.cause)


def _rolled_back(
    state: Reads,
    opened: OpenRollback,
    target: Restorable,
    report: rb.RolledBackReport | None = None,
) -> Event:
    """Return the end of the rollback: from a trainer's report, or without one as the next start completes it."""
    event = rb.RolledBack(
        rollback=opened.id,
        checkpoint=target.id,
        branch=state.rollbacks.branches.next_branch,
        parent=target.branch,
        step=target.step,
        epoch=target.epoch,
        batch=target.batch,
        commit_s=report.commit_s if report else 0.0,
        confirm_s=report.confirm_s if report else 0.0,
        by_start=report is None,
        orders=target.orders,
        spans=report.spans if report else rb.RollbackSpans(),
        from_step=opened.from_step,
        why=opened.why,
        late=report.late if report else (),
    )
    return event.caused_by(opened.cause)


# -- what may be gone back to ------------------------------------------------------------------------------------------


def copied(state: Reads, report: rb.StateCopiedReport, _: At[Reads]) -> Decision | None:
    """Record the copy, unless the operation that it belongs to has ended."""
    opened = state.snapshots.open
    causes = {one.id: one.cause for one in state.checkpoints.open} | ({opened.id: opened.cause} if opened else {})
    at = causes.get(report.id)
    if at is None:
        return None
    event = rb.StateCopied(id=report.id, step=report.step, epoch=report.epoch, batch=report.batch)
    return Decision((event.caused_by(at),))
