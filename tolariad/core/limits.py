"""What ends a run before its epochs do, and which epoch was the best: slice, apply table, decisions.

Invariants: the time of training is folded from the journal, so it goes on counting after a restart, and stands still while
nothing trains, while a pause lasts, and while steps are run again; a limit once reached stays reached; the best epoch is that
of the run's own line, whatever was left; the checkpoint kept as the best is of its very end, never of a later one. It must not know: tensors, files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import checkpoints as ckpt_rules
from tolariad.core import run as run_rules
from tolariad.core.decision import NOTHING, Decision
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import run, steps, trainer
from tolariad.core.vocabulary.base import ApplyTable, Cause, Event

if TYPE_CHECKING:
    from tolariad.core.state import RunState

_HOUR_NS: Final = 3600 * 10**9
_NS_MAX: Final = 2**63 - 1
DEFAULT_METRIC: Final = "loss"
# Which way is better, for the names that every task gives the same meaning; any other says it, as in `f1:max`.
KNOWN_MODES: Final = {"loss": run.Better.MIN, "accuracy": run.Better.MAX}


class Limits(msgspec.Struct, frozen=True):
    """Slice of RunState. `clock_mono`: up to when training time is counted; 0 while it stands still.

    `best` is the best value of the living line, of `best_epoch`.
    """

    trained_ns: int = 0
    clock_mono: int = 0
    best: float | None = None
    best_epoch: int = 0
    reached: steps.Limit | None = None


def _tick(s: Limits, e: Event, _: Cause) -> Limits:
    """Training went on until this event."""
    if not s.clock_mono:
        return s
    trained = s.trained_ns + max(0, e.mono - s.clock_mono)
    return replace(s, trained_ns=min(trained, _NS_MAX), clock_mono=e.mono)


def _start_clock(s: Limits, e: Event, _: Cause) -> Limits:
    return replace(s, clock_mono=e.mono)


def _stop_clock(s: Limits, _: Event, __: Cause) -> Limits:
    return replace(s, clock_mono=0)


def _tick_and_stop(s: Limits, e: Event, at: Cause) -> Limits:
    return _stop_clock(_tick(s, e, at), e, at)


def _improved(s: Limits, e: steps.ValidationImproved, _: Cause) -> Limits:
    return replace(s, best=e.value, best_epoch=e.epoch)


def _reached(s: Limits, e: steps.LimitReached, _: Cause) -> Limits:
    return replace(s, reached=e.limit)


APPLY: Final[ApplyTable] = {
    ck.TrainingStarted: _start_clock,
    ck.RerunBegun: _stop_clock,
    ck.RerunFinished: _start_clock,
    steps.StepCompleted: _tick,
    steps.StepSkipped: _tick,
    steps.ValidationFinished: _tick,
    steps.EpochFinished: _tick,
    ck.CheckpointCommitted: _tick,
    run.RunPaused: _tick_and_stop,
    run.RunFrozen: _tick_and_stop,
    run.RunResumed: _start_clock,
    trainer.TrainerStarted: _stop_clock,
    trainer.TrainerDied: _stop_clock,
    trainer.TrainerEnded: _stop_clock,
    steps.ValidationImproved: _improved,
    steps.LimitReached: _reached,
}


def read_metric(text: str) -> tuple[str, run.Better]:
    """`NAME`, `NAME:min` or `NAME:max`. Raises ValueError where it cannot be known which way is better."""
    name, colon, word = text.partition(":")
    if colon and word in {"min", "max"} and name:
        return name, run.Better(word)
    if colon or not name:
        raise ValueError(f"must be a metric's name, with :min or :max behind it, got {text!r}")
    if name not in KNOWN_MODES:
        raise ValueError(f"is a larger {name} better? say {name}:max or {name}:min")
    return name, KNOWN_MODES[name]


def trained_ns(state: RunState, mono: int) -> int:
    """Training time so far, at monotonic time `mono` of this boot."""
    limits = state.limits
    return limits.trained_ns + (max(0, mono - limits.clock_mono) if limits.clock_mono else 0)


def last_epoch(state: RunState) -> int:
    """The epoch after which the run is complete."""
    policy = state.run.policy
    return min(policy.epochs, policy.stop_epochs or policy.epochs)


def last_step(state: RunState) -> int | None:
    """The step at which a trainer that starts now ends; None where only epochs end it."""
    return state.progress.step if state.limits.reached else state.run.policy.stop_steps


def steps_in_all(state: RunState) -> int | None:
    """How many steps the run has when nothing ends it sooner; None where only its data knows."""
    by_epochs = last_epoch(state) * state.progress.steps_per_epoch
    return min(filter(None, (by_epochs, state.run.policy.stop_steps)), default=None)


def epoch_to_keep(state: RunState) -> int:
    """The best epoch, where its end is recorded and no checkpoint holds it yet, or none any more; else 0."""
    best = state.limits.best_epoch
    is_over = best <= state.progress.epoch_finished
    return best if state.run.policy.keep_best and is_over and best != state.checkpoints.best_epoch else 0


def is_best(state: RunState, report: ck.CheckpointWrittenReport) -> bool:
    """Does the checkpoint hold the very end of the best epoch?"""
    best = state.limits.best_epoch
    return state.run.policy.keep_best and best > 0 and (report.epoch, report.batch) == (best + 1, 0)


def concerned(state: RunState, mono: int) -> bool:
    """Is the time over? On the way of every step, so asked before that is folded."""
    hours = state.run.policy.stop_hours
    return hours is not None and state.limits.reached is None and trained_ns(state, mono) >= hours * _HOUR_NS


def after_step(state: RunState) -> Decision:
    """Behind the first recorded step whose time is over: only hours end a run between two boundaries of its own choice."""
    is_open = state.limits.reached is None and state.run.phase is run_rules.Phase.RUNNING
    return _end(state, steps.Limit.HOURS) if is_open else NOTHING


def after_epoch(without: RunState, state: RunState, epoch: int, mono: int) -> Decision:
    """The same behind an epoch's recorded end, where patience may be over too; `without`: that end."""
    patience = state.run.policy.patience
    if patience is None or state.limits.reached or epoch - state.limits.best_epoch < patience:
        return after_step(state) if concerned(without, mono) else NOTHING
    return _end(state, steps.Limit.PATIENCE)


def _end(state: RunState, limit: steps.Limit) -> Decision:
    return Decision((_limit_reached(state, limit),), (steps.EndTraining(),))


def _limit_reached(state: RunState, limit: steps.Limit) -> steps.LimitReached:
    return steps.LimitReached(limit=limit, step=state.progress.step, epoch=state.progress.epoch)


def after_training(state: RunState) -> Decision:
    """The trainer has ended by itself: name the limit, where not all epochs were done."""
    policy, progress = state.run.policy, state.progress
    if state.limits.reached or progress.epoch_finished >= policy.epochs:
        return NOTHING
    by_steps = policy.stop_steps is not None and progress.step >= policy.stop_steps
    return Decision((_limit_reached(state, steps.Limit.STEPS if by_steps else steps.Limit.EPOCHS),))


def after_validation(state: RunState, report: steps.ValidationReport) -> Decision:
    """Is it better than all before? A metric that is not there ends the run: it would never be the best."""
    policy = state.run.policy
    if not policy.metric:
        return NOTHING
    value = report.metrics.get(policy.metric)
    if value is None:
        there = ", ".join(sorted(report.metrics)) or "none at all"
        why = f"keep_best or stop.patience goes by the validation's {policy.metric}; the task's metrics are: {there}"
        return run_rules.failed(state, run.FailureKind.CONFIGURATION, why)
    if math.isnan(value) or not _is_better(value, state.limits.best, policy.better):
        return NOTHING
    return Decision((steps.ValidationImproved(epoch=report.epoch, metric=policy.metric, value=value),))


def _is_better(value: float, best: float | None, better: run.Better) -> bool:
    if best is None:
        return True
    return value < best if better is run.Better.MIN else value > best


def epoch_again(state: RunState, report: steps.EpochReport) -> Decision:
    """An epoch whose end is recorded has come to its end again, in a re-run, to be kept."""
    go_on = Decision((), (steps.Continue(epoch=report.epoch),))
    if report.epoch != epoch_to_keep(state):
        return go_on
    return ckpt_rules.take(state, ck.CheckpointReason.BEST) + go_on
