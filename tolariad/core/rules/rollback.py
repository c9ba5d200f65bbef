"""Rules of rollbacks: orders, the protocol's next phase, its end.

PREPARE asks every participant whether it can go back, COMMIT restores them, CONFIRM compares what they hold. If no
trainer lives, the next one begins at the target, and that completes the rollback.
"""

from __future__ import annotations

from typing import Protocol

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
    st.HasRollbacks,
    st.HasSnapshots,
    st.HasSeeds,
    st.HasStrategy,
    st.HasCopies,
    Protocol,
):
    """The slices that the rules of rollbacks read."""


# -- orders ------------------------------------------------------------------------------------------------------------


def order(state: Reads, command: m.Rollback) -> m.RollbackRequested | m.Refusal:
    """Accept or refuse an operator's order. It begins at once, or after the re-run under way."""
    phase = state.run.phase
    if not q.may_begin(state) or state.rollbacks.asked is not None:
        at = "at its end, and its last checkpoint is being written" if state.checkpoints.is_ending else phase.value
        why = f"the run is {at}; a rollback needs one that is running, paused or frozen, and no other rollback"
        return m.Refusal("WrongPhase", why)
    if (ahead := _ahead(state, command)) is not None:
        return m.Refusal("Refused", ahead)
    target = q.find_target(state, command)
    if isinstance(target, str):
        return m.Refusal("NotFound", target)
    is_named = command.to or command.epoch is not None or command.step is not None
    return m.RollbackRequested(
        checkpoint=target.id,
        tier=command.tier or m.Tier.FULL,
        step=target.step,
        otherwise=m.RefusalPolicy.STAY if is_named else m.RefusalPolicy.OLDER,
        epoch=target.epoch,
        batch=target.batch,
        given_up=max(0, state.progress.step - target.step),
    )


def _ahead(state: Reads, command: m.Rollback) -> str | None:
    """Return a sentence if the order names a place that the run has not reached."""
    progress = state.progress
    here = f"the run is in epoch {max(1, progress.epoch)}, at step {progress.step}"
    if command.epoch is not None and command.epoch > max(1, progress.epoch):
        return f"epoch {command.epoch} is not reached yet: {here}; a rollback only goes back"
    if command.step is not None and command.step > progress.step:
        return f"step {command.step} is not reached yet: {here}; a rollback only goes back"
    return None


def begin_ordered(state: Reads, event: m.RollbackRequested, _: At[Reads]) -> Decision | None:
    """Begin at once, unless a re-run is under way or a trainer is being built.

    An emergency's order waits until one trains.
    """
    is_built = state.trainer.alive and not state.trainer.began
    if event.otherwise is m.RefusalPolicy.HALT or state.progress.rerun is not None or is_built:
        return None
    return _begin_asked(state)


def begin_waiting(state: Reads, _: m.TrainingStarted | m.RerunFinished, __: At[Reads]) -> Decision | None:
    """Begin the rollback that was ordered meanwhile: the re-run is over."""
    return None if state.progress.rerun is not None else _begin_asked(state)


def _begin_asked(state: Reads) -> Decision | None:
    asked = state.rollbacks.asked
    if asked is None or not q.may_begin(state):
        return None
    # A snapshot may be gone with its daemon. Orders of older versions do not have the step.
    target = _target(state, asked.checkpoint) or (q.target_on_disk(state, asked.step) if asked.step else None)
    if target is not None:
        return Decision((q.rollback_begun(state, target, asked.why, asked.otherwise, asked.cause),))
    # End the order; otherwise no other rollback could ever be ordered.
    event = q.rollback_begun_as(state, asked)
    why = f"{asked.checkpoint} cannot be used any more, nor any checkpoint at or before step {asked.step}"
    return Decision((event, m.RollbackAborted(rollback=event.rollback, why=why).caused_by(asked.cause)))


# -- the protocol ------------------------------------------------------------------------------------------------------


def prepare(state: Reads, _: m.RollbackBegun | m.RollbackEscalated, __: At[Reads]) -> Decision | None:
    """PREPARE: ask the trainer, if one lives."""
    opened = state.rollbacks.open
    target = None if opened is None else q.restorable(state, opened.checkpoint)
    if opened is None or target is None or not state.trainer.alive:
        return None
    left = q.tokens_left_at(state, target.ref, opened.checkpoint)
    order = m.PrepareRollback(rollback=opened.id, checkpoint=target.ref, tier=opened.tier, tokens_left=left)
    return Decision((), (order,))


def without_trainer(state: Reads, _: m.RollbackBegun, at: At[Reads]) -> Decision | None:
    """If no trainer lives, complete the rollback: the next trainer begins at the target."""
    opened, phase = state.rollbacks.open, at.was.run.phase
    target = None if opened is None else q.restorable(state, opened.checkpoint)
    if state.trainer.alive or opened is None or target is None:
        return None
    finished = _rolled_back(state, opened, target)
    if phase not in (st.Phase.PAUSED, st.Phase.FROZEN):
        return Decision((finished,))  # the next start is already under way
    if state.run.pause is not None:
        return Decision((finished, q.pause_reached(state, state.run.pause, target.step)))
    return Decision((finished,), (q.spawn_trainer(state),))


def _opened(
    state: Reads,
    report: m.RollbackHeardReport
    | m.RollbackPreparedReport
    | m.RollbackRefusedReport
    | m.RolledBackReport
    | m.StrategyVoted,
) -> st.OpenRollback | None:
    """Return the open rollback if the report belongs to it and to its present target, else None."""
    opened = state.rollbacks.open
    if opened is None or opened.id != report.rollback:
        return None
    return opened if getattr(report, "checkpoint", "") in ("", opened.checkpoint) else None


def heard(state: Reads, report: m.RollbackHeardReport, _: At[Reads]) -> Decision | None:
    """Record that training has stopped for the rollback. Its deadline counts from here."""
    opened = _opened(state, report)
    if opened is None or opened.heard_mono:
        return None
    return Decision((m.RollbackHeard(rollback=opened.id).caused_by(opened.cause),))


def prepared(state: Reads, report: m.RollbackPreparedReport, _: At[Reads]) -> Decision | None:
    """COMMIT: all participants that answered can go back."""
    opened = _opened(state, report)
    if opened is None:
        return None
    event = m.RollbackPrepared(
        rollback=opened.id, participants=report.participants, seconds=report.seconds, abstained=report.abstained
    )
    commit = () if q.awaits_vote(state) else (m.CommitRollback(rollback=opened.id),)
    return Decision((event.caused_by(opened.cause),), commit)


def voted(state: Reads, event: m.StrategyVoted, at: At[Reads]) -> Decision | None:
    """Go on after the strategy's vote: to an older target if it refused, else to COMMIT if the trainer is prepared."""
    opened = state.rollbacks.open
    if opened is None:
        return None
    if event.vote is m.Vote.REFUSED:
        return refused(state, event, at)
    return Decision((), (m.CommitRollback(rollback=opened.id),)) if opened.is_prepared else None


def finished(state: Reads, report: m.RolledBackReport, _: At[Reads]) -> Decision | None:
    """CONFIRM: the trainer is at the target, and trains from there unless the run is paused."""
    opened = _opened(state, report)
    target = None if opened is None else q.restorable(state, opened.checkpoint)
    if opened is None or target is None:
        return None
    done = _rolled_back(state, opened, target, report)
    started = m.TrainingStarted(incarnation=state.trainer.incarnation, step=target.step, checkpoint=target.id)
    return Decision((done, started), (m.Hold(),) if state.run.pause is not None else ())


def refused(state: Reads, report: m.RollbackRefusedReport | m.StrategyVoted, _: At[Reads]) -> Decision | None:
    """Reject the target and go on to an older one, unless the order named this one."""
    opened = _opened(state, report)
    if opened is None:
        return None
    # If a participant refused, the target is intact. Another one of the same step would hold the same state.
    gone: tuple[m.Event, ...] = ()
    if not isinstance(report, m.StrategyVoted) and not report.participant:
        gone = (q.rejected(state, opened.checkpoint, report),)
    until = opened.to_step - 1 if report.participant else opened.to_step
    why = f"{opened.checkpoint} cannot be used: {report.file}: {report.why}"
    if (target := q.target_instead(state, opened, until)) is not None:
        return Decision((_escalated(opened, target, why), *gone))
    aborted = m.RollbackAborted(rollback=opened.id, why=f"checkpoint {why}").caused_by(opened.cause)
    if report.restored:
        # The trainer's previous state is overwritten: only a start from a checkpoint helps.
        incarnation = state.trainer.incarnation
        kill = m.KillTrainer(incarnation=incarnation, why="its rollback failed when it was restored")
        return Decision((aborted, *gone), (kill,))
    hold = (m.Hold(),) if state.run.pause is not None else ()
    return Decision((aborted, *gone), (m.AbortRollback(rollback=opened.id), *hold))


def complete_open(state: Reads, _: m.TrainerIsGone, __: At[Reads]) -> Decision | None:
    """Complete the open rollback without its trainer: the next one begins at the target."""
    opened = state.rollbacks.open
    if opened is None:
        return None
    target = _target(state, opened.checkpoint)
    if target is not None:
        return Decision((_rolled_back(state, opened, target),))
    if opened.tier is m.Tier.FAST and (older := q.target_on_disk(state, opened.to_step)) is not None:
        escalated = _escalated(opened, older, f"snapshot {opened.checkpoint} went with the daemon's memory")
        return Decision((escalated, _rolled_back(state, opened, older)))
    aborted = m.RollbackAborted(rollback=opened.id, why="its target cannot be used any more")
    return Decision((aborted.caused_by(opened.cause),))


def _target(state: Reads, id_: str) -> q.Restorable | None:
    """Return the chosen target if it may still be used, else None."""
    found = q.restorable(state, id_)
    return None if isinstance(found, st.CatalogueEntry) and not found.is_way_back else found


def _escalated(opened: st.OpenRollback, target: st.CatalogueEntry, why: str) -> m.RollbackEscalated:
    event = m.RollbackEscalated(rollback=opened.id, checkpoint=target.id, to_step=target.step, why=why)
    return event.caused_by(opened.cause)


def _rolled_back(
    state: Reads,
    opened: st.OpenRollback,
    target: q.Restorable,
    report: m.RolledBackReport | None = None,
) -> m.Event:
    """Return the end of the rollback: from a trainer's report, or without one as the next start completes it."""
    event = m.RolledBack(
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
        spans=report.spans if report else m.RollbackSpans(),
        from_step=opened.from_step,
        why=opened.why,
        late=report.late if report else (),
    )
    return event.caused_by(opened.cause)


# -- what may be gone back to ------------------------------------------------------------------------------------------


def copied(state: Reads, report: m.StateCopiedReport, _: At[Reads]) -> Decision | None:
    """Record the copy, unless the operation that it belongs to has ended."""
    opened = state.snapshots.open
    causes = {one.id: one.cause for one in state.checkpoints.open} | ({opened.id: opened.cause} if opened else {})
    at = causes.get(report.id)
    if at is None:
        return None
    # While steps are made again, the code that made them first is what counts.
    code = q.unknown_code(state.progress, report.code) if state.progress.rerun is None else ()
    return Decision((m.StateCopied.of(report, code=code).caused_by(at),))
