"""What ends a run before its epochs do, and which epoch was the best: slice, apply table.

Invariants: the time of training is folded from the journal, so it goes on counting after a restart, and stands still while
nothing trains, while a pause lasts, and while steps are run again; a limit once reached stays reached; the best epoch is that
of the run's own line, whatever was left; the checkpoint kept as the best is of its very end, never of a later one. It must not know: tensors, files.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause, Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.run import words as run
from tolariad.core.steps import words as steps
from tolariad.core.trainer import words as trainer

_NS_MAX: Final = 2**63 - 1


class Limits(msgspec.Struct, frozen=True):
    """Slice of RunState. `clock_mono`: up to when training time is counted; 0 while it stands still.

    `best` is the best value of the living line, of `best_epoch`.
    """

    trained_ns: int = 0
    clock_mono: int = 0
    best: float | None = None
    best_epoch: int = 0
    reached: steps.Limit | None = None

    def trained_until(self, mono: int) -> int:
        """Return the ns of training so far, at monotonic time `mono` of this boot."""
        return self.trained_ns + (max(0, mono - self.clock_mono) if self.clock_mono else 0)


class HasLimits(Protocol):
    """A state with this slice."""

    @property
    def limits(self) -> Limits:
        """Return the limits and the best epoch."""


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
