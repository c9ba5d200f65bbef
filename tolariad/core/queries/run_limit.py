"""Where the run ends, which epoch's end needs a checkpoint, and what the learning rates will do if the end is another.

An order for another end leaves the schedules as they were computed (decision 0025). So a re-run of any step has the
rates of the journal. A start with another number of epochs computes them anew.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.bounds import EPOCH_MAX
from tolariad.core.calc.learning_rate.group import Group, rate_of
from tolariad.core.calc.learning_rate.schedule import BY_LENGTH, LRPolicy

# What the next rate is under another plan depends on the configuration: a share of the run, or a function's new table.
_NOT_KNOWN: Final = (LRPolicy.WSD, LRPolicy.FUNCTION)


class RunAndProgress(st.HasRun, st.HasProgress, Protocol):
    """The slices with the limits and the place of training."""


class KeepsBest(st.HasRun, st.HasProgress, st.HasCheckpoints, Protocol):
    """The slices with the best epoch and the checkpoints."""


class AllTrained(st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasRollbacks, Protocol):
    """The slices with the end of the run, and with operations that may follow the last step."""


class TokensAndTargets(st.HasRun, st.HasTargets, Protocol):
    """The slices with the end of the run, and with what a rollback goes back to."""


class ProgressAndRates(st.HasProgress, st.HasRates, Protocol):
    """The slices with the rates, and the place of training."""


def last_epoch(state: st.HasRun) -> int:
    """Return the epoch after which the run is complete."""
    policy, end = state.run.policy, state.limits.end
    if end is not None:
        return EPOCH_MAX if end.epochs is None else end.epochs
    return min(policy.epochs, policy.stop_epochs or policy.epochs)


def last_step(state: RunAndProgress) -> int | None:
    """Return the step at which a trainer that starts now ends; None if only epochs end it."""
    return state.progress.step if state.limits.reached else _end_step(state)


def tokens_left(state: RunAndProgress) -> int | None:
    """Return after how many more tokens the run ends (`stop.tokens`); None if their number does not end it."""
    most = state.run.policy.stop_tokens
    return None if most is None else most - state.progress.tokens


def tokens_left_at(state: TokensAndTargets, target: m.CheckpointRef, id_: str) -> int | None:
    """Return the same after a rollback to `target`, the checkpoint or snapshot `id_`."""
    most = state.run.policy.stop_tokens
    return None if most is None else most - st.branch_at(state, id_, (target.epoch, target.batch)).progress.tokens


def _end_step(state: st.HasRun) -> int | None:
    """Return the last step, as configured or ordered, or None."""
    end = state.limits.end
    return state.run.policy.stop_steps if end is None else end.steps


def is_end_reached(state: RunAndProgress) -> bool:
    """Return whether everything that was configured or ordered is trained."""
    progress, step = state.progress, _end_step(state)
    is_trained = progress.epoch_finished >= last_epoch(state) or (step is not None and progress.step >= step)
    return is_trained or state.limits.reached is not None


def epochs_in_all(state: RunAndProgress) -> int:
    """Return the number of epochs to show: those configured, or those up to an end that was ordered."""
    end, an_epoch = state.limits.end, state.progress.steps_per_epoch
    if end is None or (end.epochs is None and not an_epoch):
        return state.run.policy.epochs
    return end.epochs if end.epochs is not None else -(-(end.steps or 0) // an_epoch)


def steps_in_all(state: RunAndProgress) -> int | None:
    """Return how many steps the run has if nothing ends it sooner; None if only its data tells."""
    by_epochs = last_epoch(state) * state.progress.steps_per_epoch
    return min(filter(None, (by_epochs, _end_step(state))), default=None)


def place_to_keep(state: KeepsBest) -> tuple[int, int] | None:
    """Return epoch and batch of the best validation if its place is recorded and no usable checkpoint holds it."""
    limits = state.limits
    is_over = limits.best_batch or limits.best_epoch <= state.progress.epoch_finished
    is_owed = state.run.policy.keep_best and limits.best_epoch and is_over
    return limits.best_place if is_owed and limits.best_place != state.checkpoints.best_place else None


def epoch_to_keep(state: KeepsBest) -> int:
    """Return the epoch whose end still needs a checkpoint, because it is the best one; else 0."""
    return state.limits.best_epoch if place_to_keep(state) and not state.limits.best_batch else 0


def step_to_keep(state: KeepsBest) -> int:
    """Return the step whose validation within an epoch is the best one, and still needs a checkpoint; else 0."""
    return state.limits.best_step if place_to_keep(state) else 0


def is_best_again(state: st.HasRun, report: m.ValidationReport) -> bool:
    """Return whether this validation within an epoch is recorded: it is the best one, reported again in a re-run."""
    return bool(report.batch) and (report.epoch, report.batch) == state.limits.best_place


def is_best(state: st.HasRun, report: m.CheckpointWrittenReport) -> bool:
    """Return whether the checkpoint is of the best validation."""
    limits = state.limits
    is_there = (report.epoch, report.batch) == limits.best_place
    return state.run.policy.keep_best and limits.best_epoch > 0 and is_there


def is_last_epoch(state: st.HasRun, epoch: int) -> bool:
    """Return whether training ends with `epoch`. Its checkpoint is taken when the trainer reports the end."""
    return epoch >= last_epoch(state) or state.limits.reached is not None


def is_training_over(state: AllTrained) -> bool:
    """Return whether the report that all is trained ends the run.

    During a rollback it does not: the trainer reaches its end once more, or reports it again if the rollback is given
    up. Nor does it if the last checkpoint is already being written, or a later end was ordered in the meantime.
    """
    return state.rollbacks.open is None and not state.checkpoints.is_ending and is_end_reached(state)


# -- what the learning rates will do -----------------------------------------------------------------------------------


def rates_until(state: ProgressAndRates, epochs: int | None, steps: int | None) -> str:
    """Return what the rates will do up to another end, after `epochs` or `steps`; "" if no rate is known yet."""
    groups, an_epoch = state.rates.groups, state.progress.steps_per_epoch
    end = steps if epochs is None else epochs * an_epoch
    if not groups or not end:
        return ""
    told = [text for group in groups if (text := _kept(group, end))]
    if not told:
        return "Learning rates do not depend on it."
    return f"Learning rates keep their curves: {'; '.join(told)}. `tolaria lr set` changes them."


def _kept(group: Group, end: int) -> str:
    """Return the change of one group, if the length of its curve is the run's and differs from `end`."""
    total = group.schedule.total_steps
    if group.policy not in BY_LENGTH or total is None or group.schedule.start + total == end:
        return ""
    planned = group.schedule.start + total
    at_end = f"{rate_of(group, end):.3g}"
    if end < planned:
        return f"{group.name} ({group.policy_name}) ends at {at_end} instead of {rate_of(group, planned):.3g}"
    return f"{group.name} ({group.policy_name}) stays at {at_end} after step {planned}"


def rates_of_plan(state: ProgressAndRates, total: int) -> str:
    """Return what the rates will do if the run is planned anew, for `total` steps; "" if they do not depend on it."""
    step = state.progress.step
    told = [
        f"{group.name} ({group.policy_name}) {_planned(group, total, step)}"
        for group in state.rates.groups
        if group.policy in BY_LENGTH and group.schedule.total_steps not in (None, total - group.schedule.start)
    ]
    return f"learning rates are computed anew for {total} steps: {'; '.join(told)}" if told else ""


def _planned(group: Group, total: int, step: int) -> str:
    """Return the rates of the last step and the next one; only the former if the next depends on the configuration."""
    schedule, before = group.schedule, rate_of(group, step)
    is_shortened = schedule.total_steps is not None and 2 * schedule.warmup_steps >= schedule.total_steps
    if group.policy in _NOT_KNOWN or is_shortened:
        return f"was {before:.3g} at step {step}"
    planned = replace(group, schedule=replace(schedule, total_steps=total - schedule.start))
    return f"was {before:.3g} at step {step} and is {rate_of(planned, step + 1):.3g} at the next"
