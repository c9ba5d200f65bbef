"""Where the run ends, and which epoch's end is to be kept: queries over several slices."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.bounds import EPOCH_MAX
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run.limit_slice import HasLimits
from tolariad.core.run.slice import HasRun
from tolariad.core.steps.slice import HasProgress


class RunAndLimits(HasRun, HasLimits, Protocol):
    """Which limits there are, and which were reached."""


class Ends(HasRun, HasProgress, HasLimits, Protocol):
    """Where the run stands between its limits."""


class KeepsBest(HasRun, HasProgress, HasCheckpoints, HasLimits, Protocol):
    """Which epoch was the best, and which checkpoints there are."""


class AllTrained(HasRun, HasProgress, HasLimits, HasCheckpoints, HasRollbacks, Protocol):
    """Where the run ends, and what may still come after the last step."""


def last_epoch(state: RunAndLimits) -> int:
    """The epoch after which the run is complete."""
    policy, end = state.run.policy, state.limits.end
    if end is not None:
        return EPOCH_MAX if end.epochs is None else end.epochs
    return min(policy.epochs, policy.stop_epochs or policy.epochs)


def last_step(state: Ends) -> int | None:
    """The step at which a trainer that starts now ends; None where only epochs end it."""
    return state.progress.step if state.limits.reached else _end_step(state)


def _end_step(state: RunAndLimits) -> int | None:
    """The step that was configured or ordered as the end."""
    end = state.limits.end
    return state.run.policy.stop_steps if end is None else end.steps


def is_end_reached(state: Ends) -> bool:
    """Is everything trained that was configured or ordered?"""
    progress, step = state.progress, _end_step(state)
    is_trained = progress.epoch_finished >= last_epoch(state) or (step is not None and progress.step >= step)
    return is_trained or state.limits.reached is not None


def epochs_in_all(state: Ends) -> int:
    """How many epochs the run has, to be shown: those configured, or those up to an end that was ordered."""
    end, an_epoch = state.limits.end, state.progress.steps_per_epoch
    if end is None or (end.epochs is None and not an_epoch):
        return state.run.policy.epochs
    return end.epochs if end.epochs is not None else -(-(end.steps or 0) // an_epoch)


def steps_in_all(state: Ends) -> int | None:
    """How many steps the run has when nothing ends it sooner; None where only its data knows."""
    by_epochs = last_epoch(state) * state.progress.steps_per_epoch
    return min(filter(None, (by_epochs, _end_step(state))), default=None)


def epoch_to_keep(state: KeepsBest) -> int:
    """The best epoch, where its end is recorded and no checkpoint holds it yet, or none any more; else 0."""
    best = state.limits.best_epoch
    is_over = best <= state.progress.epoch_finished
    return best if state.run.policy.keep_best and is_over and best != state.checkpoints.best_epoch else 0


def is_best(state: RunAndLimits, report: ck.CheckpointWrittenReport) -> bool:
    """Does the checkpoint hold the very end of the best epoch?"""
    best = state.limits.best_epoch
    return state.run.policy.keep_best and best > 0 and (report.epoch, report.batch) == (best + 1, 0)


def is_last_epoch(state: RunAndLimits, epoch: int) -> bool:
    """Does the training end with `epoch`? Its checkpoint is taken when the trainer says so."""
    return epoch >= last_epoch(state) or state.limits.reached is not None


def is_training_over(state: AllTrained) -> bool:
    """Does a trainer that says "all is trained" end the run?

    Not during a rollback: the trainer will come to its end once more, or reports it again if the rollback is given up. Nor
    while the run's last checkpoint is being written already. Nor if a later end was ordered while the report was on its way.
    """
    return state.rollbacks.open is None and not state.checkpoints.is_ending and is_end_reached(state)
