"""What follows from reports of steps, epochs and validations."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause, Event
from tolariad.core.decision import Decision
from tolariad.core.engine import At, Numbered
from tolariad.core.health import budget_words as bv
from tolariad.core.health.ask import cause_of
from tolariad.core.health.slice import HasQuarantine
from tolariad.core.health.words import detected
from tolariad.core.inputs import Now
from tolariad.core.run.limit_ask import AllTrained, is_training_over
from tolariad.core.steps import words as sv
from tolariad.core.steps.rerun_slice import HasRerun
from tolariad.core.steps.slice import plateau_metric
from tolariad.core.trainer.ask import TrainerIsGone, refused, why_ended
from tolariad.core.trainer.slice import HasTrainer


class Reads(Numbered, AllTrained, HasTrainer, HasRerun, HasQuarantine, Protocol):
    """The slices that the rules of steps read."""


def next_step(state: Reads, report: sv.StepReport, now: Now) -> sv.StepCompleted | None:
    """Return the event of one applied update, stamped as the only fact of its input; None if it is not the next one."""
    if report.step != state.progress.step + 1 or state.rerun.open is not None:
        return None
    return sv.StepCompleted(
        wall=now.wall,
        mono=now.mono,
        root=state.seq + 1,
        step=report.step,
        epoch=report.epoch,
        batch=report.batch,
        loss=report.loss,
        grad_norm=report.grad_norm,
        lr=report.lr,
        rates=report.rates,
        branch=state.progress.branch,
    )


def stepped(state: Reads, report: sv.StepReport, at: At[Reads]) -> Decision:
    """Record one applied update. If it is not the next one, refuse the report."""
    event = next_step(state, report, at.now)
    if event is not None:
        return Decision((event,))
    return Decision(
        (refused(state, f"step {report.step} was reported where step {state.progress.step + 1} comes next"),)
    )


def skipped(state: Reads, report: sv.StepSkippedReport, _: At[Reads]) -> Decision:
    """Record batches without an update, so that a re-run skips them again."""
    expected = state.progress.step + 1
    if report.step != expected or state.rerun.open is not None:
        return Decision(
            (refused(state, f"step {report.step} was reported as skipped where step {expected} comes next"),)
        )
    cause = cause_of(state, report)
    event = sv.StepSkipped(
        cause=cause.seq,
        root=cause.root,
        step=report.step,
        epoch=report.epoch,
        batch=report.batch,
        loss=report.loss,
        grad_norm=report.grad_norm,
        reason=report.reason,
        branch=state.progress.branch,
    )
    verdict = report.verdict
    if verdict is None:
        return Decision((event,))
    return Decision((detected(verdict, step=report.step, epoch=report.epoch, batch=report.batch), event))


def epoch_started(_: Reads, report: sv.EpochStartedReport, __: At[Reads]) -> Decision:
    """Record the start of an epoch."""
    return Decision((sv.EpochStarted(epoch=report.epoch),))


def validation_begun(_: Reads, report: sv.ValidationBegunReport, __: At[Reads]) -> Decision:
    """Record the start of a validation."""
    return Decision((sv.ValidationBegun(epoch=report.epoch, step=report.step),))


def validated(state: Reads, report: sv.ValidationReport, _: At[Reads]) -> Decision:
    """Record the end of a validation."""
    begun = state.progress.validating or Cause(0, 0)
    event = sv.ValidationFinished(
        epoch=report.epoch,
        step=report.step,
        metrics=report.metrics,
        samples=report.samples,
        seconds=report.seconds,
        cause=begun.seq,
        root=begun.root,
    )
    return Decision((event,))


def epoch_finished(state: Reads, report: sv.EpochReport, at: At[Reads]) -> Decision:
    """Record the end of an epoch. Its sums come from the folded steps, so a re-run after a crash gives the same ones.

    In a re-run the trainer may report an end that is already recorded; that is no event.
    """
    progress = state.progress
    if report.epoch <= progress.epoch_finished:
        return Decision()
    count = progress.step - progress.epoch_first_step + 1
    train_loss = progress.epoch_loss_sum / count if count else 0.0
    metrics = progress.metrics if progress.epoch_validated == report.epoch else {}
    name, metric = plateau_metric(metrics, train_loss if count else None)
    finished = sv.EpochFinished(
        epoch=report.epoch,
        step=report.step,
        steps=count,
        train_loss=train_loss,
        seconds=max(0, at.now.mono - progress.epoch_mono) / 1e9,
        metric=metric,
        metric_name=name,
    )
    return Decision((finished, *_measured(report.epoch, report)))


def _measured(epoch: int, report: sv.EpochReport | sv.TrainingEndedReport) -> tuple[Event, ...]:
    return (bv.BudgetsMeasured(epoch=epoch, tallies=report.tallies),) if report.tallies else ()


def training_measured(state: Reads, report: sv.TrainingEndedReport, at: At[Reads]) -> Decision | None:
    """Record the trainer's measurements since the last epoch's end."""
    return Decision(_measured(state.progress.epoch_finished, report)) if is_training_over(at.was) else None


def abort_validation(state: Reads, what: TrainerIsGone, _: At[Reads]) -> Decision | None:
    """Abort the open validation: its trainer is gone."""
    begun, progress = state.progress.validating, state.progress
    if begun is None:
        return None
    why = why_ended(what)
    event = sv.ValidationAborted(epoch=progress.validating_epoch, why=why, cause=begun.seq, root=begun.root)
    return Decision((event,))
