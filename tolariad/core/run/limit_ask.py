"""Where the run ends, and which epoch's end needs a checkpoint: queries over several slices."""

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
    """The slices with the limits, and with those that were reached."""


class Ends(HasRun, HasProgress, HasLimits, Protocol):
    """The slices with the limits and the place of training."""


class KeepsBest(HasRun, HasProgress, HasCheckpoints, HasLimits, Protocol):
    """The slices with the best epoch and the checkpoints."""


class AllTrained(HasRun, HasProgress, HasLimits, HasCheckpoints, HasRollbacks, Protocol):
    """The slices with the end of the run, and with operations that may follow the last step."""


def last_epoch(state: RunAndLimits) -> int:
    """Return the epoch after which the run is complete."""
    policy, end = state.run.policy, state.limits.end
    if end is not None:
        return EPOCH_MAX if end.epochs is None else end.epochs
    return min(policy.epochs, policy.stop_epochs or policy.epochs)


def last_step(state: Ends) -> int | None:
    """Return the step at which a trainer that starts now ends; None if only epochs end it."""
    return state.progress.step if state.limits.reached else _end_step(state)


def _end_step(state: RunAndLimits) -> int | None:
    """Return the last step, as configured or ordered, or None."""
    end = state.limits.end
    return state.run.policy.stop_steps if end is None else end.steps


def is_end_reached(state: Ends) -> bool:
    """Return whether everything that was configured or ordered is trained."""
    progress, step = state.progress, _end_step(state)
    is_trained = progress.epoch_finished >= last_epoch(state) or (step is not None and progress.step >= step)
    return is_trained or state.limits.reached is not None


def epochs_in_all(state: Ends) -> int:
    """Return the number of epochs to show: those configured, or those up to an end that was ordered."""
    end, an_epoch = state.limits.end, state.progress.steps_per_epoch
    if end is None or (end.epochs is None and not an_epoch):
        return state.run.policy.epochs
    return end.epochs if end.epochs is not None else -(-(end.steps or 0) // an_epoch)


def steps_in_all(state: Ends) -> int | None:
    """Return how many steps the run has if nothing ends it sooner; None if only its data tells."""
    by_epochs = last_epoch(state) * state.progress.steps_per_epoch
    return min(filter(None, (by_epochs, _end_step(state))), default=None)


def epoch_to_keep(state: KeepsBest) -> int:
    """Return the best epoch if its end is recorded and no usable checkpoint holds it, else 0."""
    best = state.limits.best_epoch
    is_over = best <= state.progress.epoch_finished
    return best if state.run.policy.keep_best and is_over and best != state.checkpoints.best_epoch else 0


def is_best(state: RunAndLimits, report: ck.CheckpointWrittenReport) -> bool:
    """Return whether the checkpoint holds the end of the best epoch."""
    best = state.limits.best_epoch
    return state.run.policy.keep_best and best > 0 and (report.epoch, report.batch) == (best + 1, 0)


def is_last_epoch(state: RunAndLimits, epoch: int) -> bool:
    """Return whether training ends with `epoch`. Its checkpoint is taken when the trainer reports the end."""
    return epoch >= last_epoch(state) or state.limits.reached is not None


def is_training_over(state: AllTrained) -> bool:
    """Return whether the report that all is trained ends the run.

    During a rollback it does not: the trainer reaches its end once more, or reports it again if the rollback is given
    up. Nor does it if the last checkpoint is already being written, or a later end was ordered in the meantime.
    """
    return state.rollbacks.open is None and not state.checkpoints.is_ending and is_end_reached(state)
