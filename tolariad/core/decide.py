"""decide(state, input): which events, which effects, which answer. It only joins the concerns.

Promises: a pure function; what it refuses leaves no trace but an answer. It must not know: when what it decides is durable
(the kernel sees to that before anything is acted on or answered).
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from tolariad.core import (
    checkpoints,
    conservative,
    control,
    disk,
    emergency,
    instability,
    known,
    limits,
    overruns,
    quarantine,
    rates,
    rerun,
    retention,
    rollback,
    run,
    snapshots,
    steps,
    trainer,
)
from tolariad.core.decision import NOTHING, Accepted, Decision
from tolariad.core.inputs import (
    BudgetsTold,
    CheckpointRemoved,
    CommandReceived,
    DiskMeasured,
    Input,
    Now,
    Opened,
    Reconfigured,
    ReportReceived,
    RingPrepared,
    RollbackOverdue,
    Scheduled,
    SignalReceived,
    SnapshotDiffers,
    TelemetryCounted,
    TrainerGone,
    TrainerSilent,
    TrainerSpawned,
    TrainerStuck,
)
from tolariad.core.run import Phase
from tolariad.core.state import RunState, fold, pending
from tolariad.core.vocabulary import Report
from tolariad.core.vocabulary import budgets as bv
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import detection as det
from tolariad.core.vocabulary import learning_rate as lv
from tolariad.core.vocabulary import optimizer as ov
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary import run as rv
from tolariad.core.vocabulary import snapshots as sn
from tolariad.core.vocabulary import steps as sv
from tolariad.core.vocabulary import trainer as tv


def decide(state: RunState, given: Input, now: Now) -> Decision:
    """What follows from one input in this state, and from what took longer than it may."""
    return overruns.with_overruns(state, _decide(state, given, now), now.mono)


def _decide(state: RunState, given: Input, now: Now) -> Decision:
    match given:
        case ReportReceived(report=report):
            return _decide_report(state, report, now)
        case CommandReceived():
            return control.decide_command(state, given)
        case SignalReceived():
            return control.decide_signal(state, given)
        case Opened():
            return _decide_opened(state, given, now)
        case TrainerSpawned():
            return trainer.decide_spawned(state, _started(given))
        case TrainerGone():
            return _decide_gone(state, given)
        case TrainerSilent():
            hung = tv.TrainerHung(
                incarnation=given.incarnation,
                activity=given.activity,
                silent_s=given.silent_s,
                limit_s=given.limit_s,
            )
            return Decision((hung,))
        case TrainerStuck():
            return _decide_stuck(given)
        case Reconfigured(change=change):
            return _kept(state, Decision((change,), (), Accepted()), now)
        case CheckpointRemoved():
            return retention.decide_removed(state, given)
        case RollbackOverdue():
            why = rollback.decide_overdue(state, given)
            return emergency.halt(state, why) if why else NOTHING
        case RingPrepared():
            return snapshots.decide_prepared(state, given)
        case SnapshotDiffers():
            decision = snapshots.decide_differs(state, given)
            return decision + snapshots.looked_at(fold(state, decision.events)) if decision.events else decision
        case Scheduled(recorded=recorded):
            return Decision((recorded,))
        case DiskMeasured():
            return disk.decide_measured(state, given)
        case TelemetryCounted(dropped=dropped):
            if state.disk.low is not None:
                return NOTHING
            return Decision((cv.TelemetryDropped(dropped=dropped, skippable=True),))
        case BudgetsTold(tallies=tallies):
            told = bv.BudgetsMeasured(epoch=state.progress.epoch, tallies=tallies)
            return Decision((told,)) if state.disk.low is None else NOTHING
        case _:
            assert_never(given)


def overdue(state: RunState, now: Now) -> Input | None:
    """What is to be decided because so much time has passed; the kernel asks with each turn, a turn a second at least."""
    return rollback.overdue(state, now.mono)


def _started(given: TrainerSpawned) -> tv.TrainerStarted:
    return tv.TrainerStarted(
        incarnation=given.incarnation, pid=given.pid, start_ticks=given.start_ticks, boot_id=given.boot_id
    )


def _decide_stuck(given: TrainerStuck) -> Decision:
    why = f"trainer {given.pid} cannot be ended (state {given.state}); nothing else is started beside it"
    stuck = tv.TrainerUnkillable(
        incarnation=given.incarnation, pid=given.pid, state=given.state, waited_s=given.waited_s
    )
    return Decision((stuck, rv.RunFrozen(why=why)))


def _kept(state: RunState, decision: Decision, now: Now) -> Decision:
    """The same, and then what checkpoints are to go after it."""
    return decision + retention.retain(fold(state, decision.events), now.wall)


def _decide_gone(state: RunState, given: TrainerGone) -> Decision:
    """What it was writing is nobody's now."""
    gone = trainer.decide_gone(state, given)
    after = fold(state, gone.events)
    gone += snapshots.looked_at(after)
    return gone + retention.sweep(after) if state.checkpoints.open else gone


def _decide_opened(state: RunState, given: Opened, now: Now) -> Decision:
    """Facts first, then the ends that are owed, then what the phase asks for."""
    facts = Decision(given.facts)
    after_facts = fold(state, given.facts)
    ends = pending(after_facts, "the daemon ended")
    after_ends = fold(after_facts, ends)
    tidy = retention.sweep(after_ends) + retention.retain(after_ends, now.wall)
    return facts + Decision(ends) + tidy + _go_on(after_ends, given)


def _go_on(state: RunState, given: Opened) -> Decision:
    """What the phase asks for; on a disk that is low a run that would train pauses before it has a trainer."""
    opened = run.go_on(state, given.mode)
    if given.disk is None:
        return opened
    measured = disk.decide_at_start(fold(state, opened.events), given.disk)
    if any(isinstance(event, rv.RunPaused) for event in measured.events):
        effects = tuple(effect for effect in opened.effects if not isinstance(effect, tv.SpawnTrainer))
        opened = Decision(opened.events, effects)
    return opened + measured


def _decide_report(state: RunState, report: Report, now: Now) -> Decision:
    decision = _decide_alone(state, report, now)
    return decision if state.rollbacks.open is None and state.rollbacks.rate_factor == 1.0 else _slower(state, decision)


def _slower(state: RunState, decision: Decision) -> Decision:
    """And the rates that a rollback backs off, once training stands where it went and is known to be there."""
    after = fold(state, decision.events)
    factor, training = after.rollbacks.rate_factor, after.trainer.began and after.run.phase is Phase.RUNNING
    if factor == 1.0 or not training or after.rerun.open is not None or after.rates.stale:
        return decision
    decision += Decision(rates.backed_off(after, factor))
    known = {one.cause.seq for one in after.rates.pending}
    ordered = (one for one in rates.waiting_orders(fold(state, decision.events)) if one.cause not in known)
    return decision + Decision((), tuple(ordered))


def _decide_alone(state: RunState, report: Report, now: Now) -> Decision:
    match report:
        case sv.StepReport():
            return _decide_step(state, report, now)
        case sv.StepSkippedReport():
            return steps.decide_skip(state, report, quarantine.cause_of(state, report))
        case sv.ValidationReport():
            decision = steps.decide_validation(state, report) + limits.after_validation(state, report)
            return decision + instability.after_validation(state, report)
        case sv.EpochStartedReport() | sv.ValidationBegunReport():
            return steps.decide_validation(state, report)
        case sv.EpochReport():
            return _decide_epoch(state, report, now)
        case sv.TrainingEndedReport() if state.rollbacks.open is not None or checkpoints.is_ending(state):
            # Sent before the trainer heard of the rollback: it will come to its end once more, or tells of it again where
            # that is given up; the latter also where the end was told of behind its refusal and is known.
            return Decision()
        case sv.TrainingEndedReport():
            ending = limits.after_training(state) + checkpoints.take(state, ck.CheckpointReason.END)
            return ending + Decision(_tallied(state.progress.epoch_finished, report))
        case rb.StateCopiedReport():
            return known.decide_copied(state, report)
        case ck.CheckpointWrittenReport() | ck.CheckpointFailedReport():
            return _kept(state, _decide_checkpoint(state, report), now)
        case ck.CheckpointUnusableReport():
            return _decide_unusable(state, report)
        case ck.TrainingStartedReport():
            return _and_rollback(state, rerun.decide_started(state, report))
        case ck.RerunReport():
            return _and_rollback(state, rerun.decide_finished(state, report))
        case det.InstabilityReport():
            return instability.decide_report(state, report)
        case rb.RollbackRefusedReport():
            return _decide_refused(state, report)
        case rb.RollbackHeardReport() | rb.RollbackPreparedReport() | rb.RolledBackReport():
            return rollback.decide_report(state, report)
        case cv.HeldReport():
            return control.decide_held(state, report)
        case tv.ReadyReport():
            return _decide_ready(state, report)
        case lv.RateSetReport():
            return rates.decide_applied(state, report)
        case lv.RatesStandingReport():
            return rates.decide_standing(state, report)
        case lv.RateGroupsReport(applied_before_step=step, groups=groups):
            return Decision((lv.LrGroupsChanged(applied_before_step=step, groups=groups),))
        case ov.RebuildReport(told=told):
            return Decision((told,))
        case lv.RateViolationReport():
            return conservative.after_violation(state, rates.violation(report), now.mono)
        case lv.AuditReport(step=step, parameter=parameter, what=what):
            return Decision((lv.AuditDiffered(step=step, parameter=parameter, what=what),))
        case sn.SnapshotSizeReport():
            return snapshots.decide_size(state, report)
        case sn.SnapshotTakenReport():
            return snapshots.decide_taken(state, report)
        case sn.SnapshotFailedReport():
            return snapshots.decide_failed(state, report)
        case tv.SetupRefusedReport(why=why):
            return run.failed(state, rv.FailureKind.CONFIGURATION, why)
        case tv.ExceptionReport(step=step, traceback=traceback):
            incarnation = state.trainer.incarnation
            return Decision((tv.ExceptionRaised(incarnation=incarnation, step=step, traceback=traceback),))
        case _:
            assert_never(report)


def _and_rollback(state: RunState, decision: Decision) -> Decision:
    """A rollback that was ordered meanwhile begins when nothing is run again any more."""
    after = fold(state, decision.events)
    return decision if after.rerun.open is not None else decision + rollback.begin_asked(after)


def _decide_ready(state: RunState, report: tv.ReadyReport) -> Decision:
    """Trains at once, unless a pause or a stop came while it was being built."""
    decision = trainer.decide_ready(state, report) + Decision(rates.registered(state, report.groups))
    decision += Decision((), rates.waiting_orders(state))
    if state.run.pause is not None and state.run.phase is not Phase.STOPPING:
        return decision + Decision((), (cv.Hold(),))
    return decision


def _decide_step(state: RunState, report: sv.StepReport, now: Now) -> Decision:
    recorded = steps.decide_step(state, report)
    if any(isinstance(event, sv.StepCompleted) for event in recorded.events):
        for violation in rates.check_step(state, report):
            recorded += conservative.after_violation(state, violation, now.mono)
        recorded += Decision(instability.stalled(state, report, now.mono))
    if checkpoints.proves(state, report.step):
        recorded += checkpoints.promoted(fold(state, recorded.events))
    if snapshots.concerned(state, report.step):
        recorded += snapshots.after_step(fold(state, recorded.events))
    if limits.concerned(state, now.mono):
        ending = limits.after_step(fold(state, recorded.events))
        if ending.events:
            return recorded + ending
    if state.run.phase is Phase.RUNNING and checkpoints.interval_is_over(state, now.mono):
        return recorded + checkpoints.take(state, ck.CheckpointReason.INTERVAL)
    return recorded


def _decide_epoch(state: RunState, report: sv.EpochReport, now: Now) -> Decision:
    if report.epoch <= state.progress.epoch_finished:
        return limits.epoch_again(state, report)
    finished = steps.epoch_finished(state, report, now.mono)
    after = fold(state, (finished,))
    cleared = emergency.after_epoch(state, report.epoch)
    decision = Decision((finished, *rates.after_epoch_events(state, finished), *cleared))
    measured = _tallied(report.epoch, report)
    seen = fold(state, tuple(replace(one, mono=now.mono) for one in measured))
    decision += Decision((*measured, *conservative.after_epoch(seen, finished, now.mono)))
    decision += limits.after_epoch(state, after, report.epoch, now.mono)
    decision += quarantine.after_epoch(after)
    is_last = report.epoch >= limits.last_epoch(state) or fold(state, decision.events).limits.reached is not None
    if state.run.phase not in (Phase.STOPPING, Phase.ROLLING_BACK) and not is_last:
        if limits.epoch_to_keep(after) == report.epoch:
            decision += checkpoints.take(state, ck.CheckpointReason.BEST)
        elif checkpoints.due_after_epoch(state, report.epoch, now.mono):
            decision += checkpoints.take(state, ck.CheckpointReason.EPOCH)
        decision += snapshots.after_epoch(fold(state, decision.events))
    return decision + Decision((), (sv.Continue(epoch=report.epoch),))


def _tallied(epoch: int, report: sv.EpochReport | sv.TrainingEndedReport) -> tuple[bv.BudgetsMeasured, ...]:
    return (bv.BudgetsMeasured(epoch=epoch, tallies=report.tallies),) if report.tallies else ()


def _decide_refused(state: RunState, report: rb.RollbackRefusedReport) -> Decision:
    """It goes on to an older target; where none is left it is given up, and what had begun it says what follows."""
    decision, opened = rollback.decide_report(state, report), state.rollbacks.open
    after = fold(state, decision.events)
    if opened is None or after.rollbacks.open is not None:
        return decision
    decision += instability.after_refusal(after, opened, f"rollback {opened.id}: {report.file}: {report.why}")
    goes_on = not report.restored and not run.is_halted(fold(state, decision.events))
    return decision + checkpoints.instead_of_all(after) if goes_on else decision


def _decide_unusable(state: RunState, report: ck.CheckpointUnusableReport) -> Decision:
    parent = state.run.parent
    if not report.id and parent is not None:
        why = f"checkpoint {parent.checkpoint} of {parent.folder} cannot be begun from: {report.file}: {report.why}"
        return run.failed(state, rv.FailureKind.CONFIGURATION, why)
    context = state.progress.environment
    rejected = rollback.rejected(state, report.id, report, context)
    # What else waits for training to begin was sent with the first order and waits on.
    return Decision((rejected,)) + trainer.start_from_newest(fold(state, (rejected,)), context)


def _decide_checkpoint(state: RunState, report: ck.CheckpointWrittenReport | ck.CheckpointFailedReport) -> Decision:
    """Committed or aborted; the last checkpoint of a run or of a stop is followed by the trainer's end."""
    reason = checkpoints.reason_of(state, report.id)
    if reason is None:
        return steps.refuse_report(state, f"checkpoint {report.id} was reported, which nobody ordered")
    if isinstance(report, ck.CheckpointFailedReport):
        decision = Decision((checkpoints.failed(state, report),))
        if reason in (ck.CheckpointReason.START, ck.CheckpointReason.END):
            why = f"the {reason.value} checkpoint could not be written: {report.why}"
            return decision + run.failed(state, rv.FailureKind.STORAGE, why)
    else:
        decision = Decision((checkpoints.written(state, report, best=limits.is_best(state, report)),))
        if reason is ck.CheckpointReason.END:
            return decision + _complete(state, report)
    if state.run.phase is Phase.STOPPING and reason is ck.CheckpointReason.STOP:
        return decision + Decision((), (tv.ExitTrainer(),))
    return decision


def _complete(state: RunState, report: ck.CheckpointWrittenReport) -> Decision:
    completed = rv.RunCompleted(step=report.step, epochs=state.progress.epoch_finished, checkpoint=report.id)
    return Decision((completed,), (tv.ExitTrainer(),))
