"""What follows for limits: when one ends the training, and which epoch was the best so far."""

from __future__ import annotations

import math
from typing import Final, Protocol

from msgspec.structs import replace

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run import words as rv
from tolariad.core.run.limit_ask import is_training_over, last_step
from tolariad.core.run.limit_slice import HasLimits
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.settings.metric import Better
from tolariad.core.steps import words as sv
from tolariad.core.steps.slice import HasProgress


class Reads(HasRun, HasProgress, HasCheckpoints, HasLimits, HasRollbacks, Protocol):
    """The slices that the rules of limits read."""


_HOUR_NS: Final = 3600 * 10**9


def after_step(state: Reads, _: sv.StepCompleted, at: At[Reads]) -> Decision | None:
    """After a step: end training if its hours are over. Only this limit can end it between two boundaries."""
    return _end(state, sv.Limit.HOURS) if _is_time_over(state, at.now.mono) else None


def _is_time_over(state: Reads, mono: int) -> bool:
    hours = state.run.policy.stop_hours
    if hours is None or state.limits.reached is not None or state.run.phase is not Phase.RUNNING:
        return False
    return state.limits.trained_until(mono) >= hours * _HOUR_NS


def after_epoch(state: Reads, event: sv.EpochFinished, at: At[Reads]) -> Decision | None:
    """After an epoch: end training if its patience or its hours are over."""
    patience, limits = state.run.policy.patience, state.limits
    if patience is not None and not limits.reached and event.epoch - limits.best_epoch >= patience:
        return _end(state, sv.Limit.PATIENCE)
    return _end(state, sv.Limit.HOURS) if _is_time_over(state, at.now.mono) else None


def _end(state: Reads, limit: sv.Limit) -> Decision:
    return Decision((_reached(state, limit),), (sv.EndTraining(),))


def _reached(state: Reads, limit: sv.Limit) -> sv.LimitReached:
    return sv.LimitReached(limit=limit, step=state.progress.step, epoch=state.progress.epoch)


def after_training(state: Reads, _: sv.TrainingEndedReport, at: At[Reads]) -> Decision | None:
    """Training ended by itself: record which limit ended it, if not all epochs were done."""
    policy, progress = state.run.policy, state.progress
    if not is_training_over(at.was) or state.limits.reached or progress.epoch_finished >= policy.epochs:
        return None
    last, end = last_step(state), state.limits.end
    by_steps = last is not None and progress.step >= last
    reached = _reached(state, sv.Limit.STEPS if by_steps else sv.Limit.EPOCHS)
    return Decision((reached if end is None else replace(reached, cause=end.cause.seq, root=end.cause.root),))


def after_validation(state: Reads, event: sv.ValidationFinished, _: At[Reads]) -> Decision | None:
    """After a validation: record if it is the best so far. Fail the run if the metric is missing."""
    policy = state.run.policy
    if not policy.metric:
        return None
    value = event.metrics.get(policy.metric)
    if value is None:
        there = ", ".join(sorted(event.metrics)) or "none at all"
        why = f"keep_best or stop.patience goes by the validation's {policy.metric}; the task's metrics are: {there}"
        return Decision((rv.RunFailed(kind=rv.FailureKind.CONFIGURATION, why=why),))
    if math.isnan(value) or not _is_better(value, state.limits.best, policy.better):
        return None
    return Decision((sv.ValidationImproved(epoch=event.epoch, metric=policy.metric, value=value),))


def _is_better(value: float, best: float | None, better: Better) -> bool:
    if best is None:
        return True
    return value < best if better is Better.MIN else value > best
