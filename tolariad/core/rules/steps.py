"""The rules for reports of steps, epochs, validations and re-runs, and what a difference in a re-run leads to."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.bounds import METRICS_MAX
from tolariad.core.calc.learning_rate.group import plateau_metric
from tolariad.core.calc.settings.changes import may_change_steps
from tolariad.core.calc.text.phrases import listed
from tolariad.core.decision import Decision
from tolariad.core.engine import At, Numbered

# The fields of a difference, in words.
_NAMES: Final = {
    "loss": "the loss",
    "grad_norm": "the gradient norm",
    "lr": "the first rate",
    "rates": "the digest of the rates",
}


class Reads(Numbered, q.AllTrained, q.ReadsHealth, st.HasRates, Protocol):
    """The slices that the rules of steps read."""


def next_step(state: Reads, report: m.StepReport, now: m.Now) -> m.StepCompleted | None:
    """Return the event of one applied update, stamped as the only fact of its input; None if it is not the next one."""
    if report.step != state.progress.step + 1 or state.progress.rerun is not None:
        return None
    return m.StepCompleted(
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
        metrics=report.metrics,
        data=report.data,
    )


def metrics_named(state: Reads, report: m.MetricsNamedReport, _: At[Reads]) -> Decision:
    """Record names of metrics. Refuse them if they are too many, or if the run has one of them already."""
    known, more = state.progress.metric_names, report.names
    if len(known) + len(more) > METRICS_MAX or len({*known, *more}) < len(known) + len(more):
        why = f"{len(more)} names of metrics were reported that cannot follow the {len(known)} known ones"
        return Decision((state.trainer.refused(why),))
    return Decision((m.MetricsNamed.of(report),))


def stepped(state: Reads, report: m.StepReport, at: At[Reads]) -> Decision:
    """Record one applied update. If it is not the next one, refuse the report."""
    event = next_step(state, report, at.now)
    if event is not None:
        return Decision((event,))
    return Decision(
        (state.trainer.refused(f"step {report.step} was reported, but step {state.progress.step + 1} comes next"),)
    )


def digested(state: Reads, report: m.ParametersDigestedReport, _: At[Reads]) -> Decision:
    """Record the digests of a step that is recorded."""
    if report.step > state.progress.step:
        why = f"step {report.step} was digested, but step {state.progress.step} is the last one that was reported"
        return Decision((state.trainer.refused(why),))
    return Decision((m.ParametersDigested.of(report, branch=state.progress.branch, skippable=True),))


def skipped(state: Reads, report: m.StepSkippedReport, _: At[Reads]) -> Decision:
    """Record batches without an update, so that a re-run skips them again."""
    expected = state.progress.step + 1
    if report.step != expected or state.progress.rerun is not None:
        return Decision(
            (state.trainer.refused(f"step {report.step} was reported as skipped, but step {expected} comes next"),)
        )
    event = m.StepSkipped.of(report, branch=state.progress.branch).caused_by(q.cause_of(state, report))
    verdict = report.verdict
    if verdict is None:
        return Decision((event,))
    found = m.detected(verdict, step=report.step, epoch=report.epoch, batch=report.batch)
    return Decision((q.judged(state, found, None), event))


def validated(state: Reads, report: m.ValidationReport, _: At[Reads]) -> Decision:
    """Record the end of a validation. One within an epoch may be reported again, if it still needs a checkpoint."""
    if q.is_best_again(state, report):
        return Decision()
    return Decision((m.ValidationFinished.of(report).caused_by(state.progress.validating),))


def epoch_finished(state: Reads, report: m.EpochReport, at: At[Reads]) -> Decision:
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
    finished = m.EpochFinished.of(
        report,
        steps=count,
        train_loss=train_loss,
        seconds=max(0, at.now.mono - progress.epoch_mono) / 1e9,
        metric=metric,
        metric_name=name,
        metrics={**progress.epoch_metrics, **report.metrics},
    )
    return Decision((finished, *_measured(report.epoch, report)))


def _measured(epoch: int, report: m.EpochReport | m.TrainingEndedReport) -> tuple[m.Event, ...]:
    return (m.BudgetsMeasured(epoch=epoch, tallies=report.tallies),) if report.tallies else ()


def training_measured(state: Reads, report: m.TrainingEndedReport, at: At[Reads]) -> Decision | None:
    """Record the trainer's measurements since the last epoch's end."""
    return Decision(_measured(state.progress.epoch_finished, report)) if q.is_training_over(at.was) else None


# -- re-runs -----------------------------------------------------------------------------------------------------------


def training_started(state: Reads, report: m.TrainingStartedReport, _: At[Reads]) -> Decision:
    """Record the start of training, and of a re-run if the journal has steps after the checkpoint."""
    last = state.progress.step
    # After any other start the script repeats the orders that acted after the checkpoint, since nothing was undone.
    owed = state.rates.stale and report.checkpoint != state.rollbacks.target
    event = m.TrainingStarted.of(report, incarnation=state.trainer.incarnation, rates_owed=owed)
    if report.step >= last and not _skipped_after(state, report.checkpoint):
        return Decision((event,))
    # One block, so that rules which react to the start see the re-run.
    return Decision((event, m.RerunBegun(first=report.step + 1, last=last, checkpoint=report.checkpoint)))


def _skipped_after(state: Reads, checkpoint: str) -> bool:
    """Return whether anything was skipped after the checkpoint that training starts from."""
    entry = q.restorable(state, checkpoint)
    return state.progress.last_skip > ((entry.epoch, entry.batch) if entry else (1, 0))


def rerun_finished(state: Reads, report: m.RerunReport, _: At[Reads]) -> Decision:
    """Record the end of the script."""
    begun = state.progress.rerun
    other_code = q.other_code(state.progress, report.code)
    expected = _why_they_may_differ(state, report.first, other_code)
    event = m.RerunFinished.of(report, expected=expected, other_code=other_code)
    return Decision((event.caused_by(begun.cause if begun else None),))


def _why_they_may_differ(state: Reads, first: int, loaded: tuple[str, ...]) -> str:
    """Return why a re-run from step `first` may differ, as a clause; "" if every bit must be the same.

    `loaded`: the names of files that have changed and were loaded during the re-run.
    """
    progress = state.progress
    if progress.inexact:
        return progress.inexact[0]
    # Rates are computed for `stop.steps` only if the data has no length.
    depends = (key for key in state.run.changed if may_change_steps(key))
    changed = [key for key in depends if key != "stop.steps" or not progress.steps_per_epoch]
    if first < progress.environment_since:
        return f"changed: {', '.join(changed)}" if changed else "the execution context is another one"
    if progress.determinism != "strict":
        return f"determinism is {progress.determinism or 'not known'}"
    code = (*_changed_since(state, first), *loaded)
    if code and progress.code.accepted:
        return f"the code has changed, which was accepted: {listed(code)}"
    return ""


def _changed_since(state: Reads, first: int) -> tuple[str, ...]:
    """Return the names of files that were loaded when training began, and have changed since step `first` was made."""
    code = state.progress.code
    return code.changed if first < code.since else ()


def rerun_compared(state: Reads, event: m.RerunFinished, _: At[Reads]) -> Decision | None:
    """Record a difference that nothing allows: determinism is strict, and every step was made in this environment."""
    if event.first_difference is None or event.expected:
        return None
    code = (*_changed_since(state, event.first), *event.other_code)
    return Decision((m.RerunDiverged(difference=event.first_difference, code=code),))


def rerun_diverged(state: Reads, event: m.RerunDiverged, _: At[Reads]) -> Decision:
    """Fail the run: a run that does not repeat itself must not be trained on without a word of the user's."""
    one = event.difference
    if event.code:
        return Decision((m.RunFailed(kind=m.FailureKind.CODE, why=_by_code(one, event.code)),))
    if one.field == "data":
        what = (
            f"step {one.step}: other data. Its batches were other ones when they were loaded again (digest "
            f"{one.expected}, now {one.found})"
        )
        causes = "random numbers without a seed in the data, an order that nobody can draw again, and changed files"
    else:
        name = _NAMES.get(one.field, one.field)
        what = f"step {one.step} came out differently when it was run again: {name} was {one.expected}, is {one.found}"
        unsaved = (
            "state of the program that no checkpoint has (a loop keeps it by run.keep(name, object), a task by its "
            "state_dict)"
            if q.is_program(state)
            else "task state that its state_dict does not save"
        )
        causes = f"random numbers without a seed in the data, {unsaved}, and changed files"
    why = f"{what}. Code, versions, hardware and number of threads are the same. The usual causes are {causes}"
    return Decision((m.RunFailed(kind=m.FailureKind.DIVERGED, why=why),))


def _by_code(one: m.Difference, files: tuple[str, ...]) -> str:
    was = f"{_NAMES.get(one.field, one.field)} was {one.expected}, is {one.found}"
    changed = f"{listed(files)} {'has' if len(files) == 1 else 'have'} changed since it was made"
    return f"step {one.step} came out differently when it was run again, and {changed}: {was}"
