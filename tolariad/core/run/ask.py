"""Whether an update may begin, and the events and orders by which the run pauses or goes on."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.run import words as run
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.steps.slice import HasProgress
from tolariad.core.trainer import words as trainer
from tolariad.core.trainer.slice import HasTrainer


class RunAndCheckpoints(HasRun, HasCheckpoints, Protocol):
    """The slices that the gate depends on."""


class RunAndTrainer(HasRun, HasTrainer, Protocol):
    """The slices that a stop depends on."""


def gate_open(state: RunAndCheckpoints) -> bool:
    """Return whether an update may begin: not before the first checkpoint is committed, never while frozen or ended.

    If all committed ones have become unusable, training goes on: the next checkpoint is already ordered.
    """
    return (
        not state.run.is_halted
        and state.run.phase is not Phase.ROLLING_BACK
        and bool(state.checkpoints.catalogue or state.checkpoints.removed)
    )


def stops_at_boundary(state: RunAndTrainer, mode: run.StopMode) -> bool:
    """Return whether a stop waits for a boundary and a last checkpoint. `state`: the one in which it is ordered."""
    living = state.trainer.alive and state.trainer.began
    return living and mode is run.StopMode.GRACEFUL and state.run.phase is not Phase.FROZEN


def spawn(state: HasTrainer, *, delay_s: float = 0.0) -> trainer.SpawnTrainer:
    """Return the order for the next trainer."""
    return trainer.SpawnTrainer(incarnation=state.trainer.incarnation + 1, delay_s=delay_s)


def pause_reached(state: HasProgress, pause: Cause | None = None, step: int | None = None) -> run.RunPaused:
    """Return the event that training stands.

    `pause`: the order, if that is not the event reacted to; `step`: the place, if not the last step.
    """
    at, cause = state.progress.step if step is None else step, pause or Cause(0, 0)
    return run.RunPaused(applied_before_step=at + 1, cause=cause.seq, root=cause.root)
