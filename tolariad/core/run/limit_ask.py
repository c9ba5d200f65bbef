"""What ends a run before its epochs do, and which epoch was the best: slice, apply table, decisions.

Invariants: the time of training is folded from the journal, so it goes on counting after a restart, and stands still while
nothing trains, while a pause lasts, and while steps are run again; a limit once reached stays reached; the best epoch is that
of the run's own line, whatever was left; the checkpoint kept as the best is of its very end, never of a later one. It must not know: tensors, files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause, Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.run import words as run
from tolariad.core.steps import words as steps
from tolariad.core.trainer import words as trainer

if TYPE_CHECKING:
    from tolariad.core.state import RunState

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


def is_last_epoch(state: RunState, epoch: int) -> bool:
    """Does the training end with `epoch`? Its checkpoint is taken when the trainer says so."""
    return epoch >= last_epoch(state) or state.limits.reached is not None


def is_training_over(state: RunState) -> bool:
    """Does a trainer that says "all is trained" end the run?

    Not during a rollback: the trainer will come to its end once more, or reports it again if the rollback is given up. Nor
    while the run's last checkpoint is being written already.
    """
    is_ending = any(one.reason is ck.CheckpointReason.END for one in state.checkpoints.open)
    return state.rollbacks.open is None and not is_ending
