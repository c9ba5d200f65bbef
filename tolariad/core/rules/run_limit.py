"""The rules that end the training: limits, which epoch was the best so far, and orders for another end.

Promises: an accepted order takes effect. If the trainer reaches the former end meanwhile, its report is ignored and it
goes on. After the last checkpoint is begun, every such order is refused.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.bounds import EPOCH_MAX
from tolariad.core.calc.settings.values import Better
from tolariad.core.calc.text.phrases import counted
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasRollbacks, st.HasRates, st.HasTrainer, Protocol):
    """The slices that the rules of limits read."""


_HOUR_NS: Final = 3600 * 10**9
_MORE: Final = "`tolariad run --dir RUN --epochs N` with more epochs continues it"


def after_step(state: Reads, _: m.StepCompleted, at: At[Reads]) -> Decision | None:
    """After a step: end training if its hours are over, or its tokens. Fail the run if nobody counts the tokens."""
    most, progress = state.run.policy.stop_tokens, state.progress
    if most is not None and not state.limits.reached:
        if progress.tokens_at < 0:
            why = (
                f"stop.tokens is {most}, but step {progress.step} has no tokens: loss(model, batch) must return them "
                'beside the loss, as {"loss": loss, "tokens": count}; in a loop, run.step(loss, tokens=count)'
            )
            return Decision((m.RunFailed(kind=m.FailureKind.CONFIGURATION, why=why),))
        if progress.tokens >= most:
            # The trainer counts as well, and makes no further step: an order would reach it within the next one.
            return Decision((_reached(state, m.Limit.TOKENS),))
    return _end(state, m.Limit.HOURS) if _is_time_over(state, at.now.mono) else None


def _is_time_over(state: Reads, mono: int) -> bool:
    hours = state.run.policy.stop_hours
    if hours is None or state.limits.reached is not None or state.run.phase is not st.Phase.RUNNING:
        return False
    return state.limits.trained_until(mono) >= hours * _HOUR_NS


def after_epoch(state: Reads, event: m.EpochFinished, at: At[Reads]) -> Decision | None:
    """After an epoch: end training if its patience or its hours are over."""
    if _is_out_of_patience(state, event.epoch):
        return _end(state, m.Limit.PATIENCE)
    return _end(state, m.Limit.HOURS) if _is_time_over(state, at.now.mono) else None


def _end(state: Reads, limit: m.Limit) -> Decision:
    return Decision((_reached(state, limit),), (m.EndTraining(),))


def _reached(state: Reads, limit: m.Limit) -> m.LimitReached:
    return m.LimitReached(limit=limit, step=state.progress.step, epoch=state.progress.epoch)


def after_training(state: Reads, _: m.TrainingEndedReport, at: At[Reads]) -> Decision | None:
    """Training ended by itself: record which limit ended it, if not all epochs were done."""
    policy, progress = state.run.policy, state.progress
    if not q.is_training_over(at.was) or state.limits.reached or progress.epoch_finished >= policy.epochs:
        return None
    last, end = q.last_step(state), state.limits.end
    by_steps = last is not None and progress.step >= last
    reached = _reached(state, m.Limit.STEPS if by_steps else m.Limit.EPOCHS)
    return Decision((reached.caused_by(end.cause if end else None),))


def after_validation(state: Reads, event: m.ValidationFinished, _: At[Reads]) -> Decision | None:
    """After a validation of an epoch: record if it is the best so far. Fail the run if the metric is missing."""
    return None if event.batch else _judged(state, event)


def after_validation_within(state: Reads, event: m.ValidationFinished, _: At[Reads]) -> Decision | None:
    """After a validation within an epoch: the same, and end training if its patience is over."""
    return _judged(state, event) if event.batch else None


def _judged(state: Reads, event: m.ValidationFinished) -> Decision | None:
    policy = state.run.policy
    if not policy.metric:
        return None
    value = event.metrics.get(policy.metric)
    if not event.metrics and state.limits.best_epoch:
        return None  # A loop does not validate after every epoch.
    if value is None:
        there = ", ".join(sorted(event.metrics)) or "none at all"
        why = f"keep_best or stop.patience needs the validation's {policy.metric}; its metrics are: {there}"
        return Decision((m.RunFailed(kind=m.FailureKind.CONFIGURATION, why=why),))
    if math.isnan(value) or not _is_better(value, state.limits.best, policy.better):
        # At an epoch's end that waits for its report (`after_epoch`).
        is_over = event.batch and _is_out_of_patience(state, event.epoch - 1)
        return _end(state, m.Limit.PATIENCE) if is_over else None
    step = event.step if event.batch else 0
    improved = m.ValidationImproved(epoch=event.epoch, metric=policy.metric, value=value, batch=event.batch, step=step)
    return Decision((improved,))


def _is_out_of_patience(state: Reads, ended: int) -> bool:
    """Return whether too many validations came after the best one, when `ended` epochs have ended."""
    patience, limits = state.run.policy.patience, state.limits
    return patience is not None and not limits.reached and limits.since_best(ended) >= patience


def _is_better(value: float, best: float | None, better: Better) -> bool:
    if best is None:
        return True
    return value < best if better is Better.MIN else value > best


# -- an order for another end ------------------------------------------------------------------------------------------


def order(state: Reads, command: m.Extend) -> m.EndOrdered | m.Refusal:
    """Accept another end, or refuse it."""
    if (refusal := _refusal(state, command)) is not None:
        return refusal
    former = q.last_step(state)
    return m.EndOrdered(
        epochs=command.epochs,
        steps=command.steps,
        former_epochs=q.last_epoch(state) if former is None else None,
        former_steps=former,
        rates=q.rates_until(state, command.epochs, command.steps),
    )


def send_end(state: Reads, event: m.EndOrdered, _: At[Reads]) -> Decision | None:
    """Send the end to a trainer that is built. Any other gets it with its order to train."""
    epochs = EPOCH_MAX if event.epochs is None else event.epochs
    order = m.SetEnd(epochs=epochs, last_step=event.steps)
    return Decision((), (order,)) if state.trainer.takes_orders else None


def _refusal(state: Reads, command: m.Extend) -> m.Refusal | None:
    phase, progress = state.run.phase, state.progress
    here = f"the run is in epoch {max(1, progress.epoch)}, at step {progress.step}"
    if phase is st.Phase.COMPLETED:
        done = f"{counted(progress.epoch_finished, 'epoch')}, {counted(progress.step, 'step')}"
        why = f"the run is complete: {done}; {_MORE}"
        return m.Refusal("WrongPhase", why)
    if phase is st.Phase.FAILED:
        return m.Refusal("WrongPhase", f"the run has failed: {state.run.why}")
    if (command.epochs is None) == (command.steps is None):
        why = "give the last epoch or the last step, and one of them only"
    elif state.checkpoints.is_ending:
        why = f"the training has come to its end, at step {progress.step}; once the run is complete, {_MORE}"
    elif state.limits.is_spent:
        why = (
            "the run ends here: stop.hours, stop.tokens or stop.patience is used up, and another epoch or step does "
            "not change that"
        )
    elif command.epochs is not None and command.epochs <= progress.epoch_finished:
        why = f"the end of epoch {command.epochs} has passed: {here}; `tolaria stop` ends it at the next step"
    elif command.steps is not None and command.steps <= progress.step:
        why = f"step {command.steps} has passed: {here}; `tolaria stop` ends it at the next step"
    else:
        return None
    return m.Refusal("Refused", why)
