"""The limits that end a run before its epochs do, and the best epoch: slice, apply table.

Invariants: the time of training is folded from the journal, so it continues after a restart. It does not count while
nothing trains, during a pause, and during a re-run. A limit stays reached. The best epoch is one of the current branch.
The checkpoint kept as the best holds the end of that epoch, never a later state.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from tolariad.core.base import Cause, Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as control
from tolariad.core.folding import ApplyTable
from tolariad.core.run import words as run
from tolariad.core.settings.changes import is_of_end
from tolariad.core.steps import words as steps
from tolariad.core.trainer import words as trainer

_NS_MAX: Final = 2**63 - 1


class OrderedEnd(msgspec.Struct, frozen=True):
    """An end that was ordered: after epoch `epochs`, or after step `steps`."""

    epochs: int | None
    steps: int | None
    cause: Cause


class RunLimits(msgspec.Struct, frozen=True):
    """Slice of RunState. `clock_mono`: the time up to which training is counted; 0 while the clock is stopped.

    `best`: the best value on the current branch, of `best_epoch`. `end`: the end that was ordered; None: as configured.
    """

    trained_ns: int = 0
    clock_mono: int = 0
    best: float | None = None
    best_epoch: int = 0
    reached: steps.Limit | None = None
    end: OrderedEnd | None = None

    @property
    def is_spent(self) -> bool:
        """Return whether the run has used up its hours or its patience. Another end does not change that."""
        return self.reached in (steps.Limit.HOURS, steps.Limit.PATIENCE)

    def trained_until(self, mono: int) -> int:
        """Return the ns of training so far, at monotonic time `mono` of this boot."""
        return self.trained_ns + (max(0, mono - self.clock_mono) if self.clock_mono else 0)


def _tick(s: RunLimits, e: Event, _: Cause) -> RunLimits:
    """Count the time of training up to this event."""
    if not s.clock_mono:
        return s
    trained = s.trained_ns + max(0, e.mono - s.clock_mono)
    return replace(s, trained_ns=min(trained, _NS_MAX), clock_mono=e.mono)


def _start_clock(s: RunLimits, e: Event, _: Cause) -> RunLimits:
    return replace(s, clock_mono=e.mono)


def _stop_clock(s: RunLimits, _: Event, __: Cause) -> RunLimits:
    return replace(s, clock_mono=0)


def _tick_and_stop(s: RunLimits, e: Event, at: Cause) -> RunLimits:
    return _stop_clock(_tick(s, e, at), e, at)


def _improved(s: RunLimits, e: steps.ValidationImproved, _: Cause) -> RunLimits:
    return replace(s, best=e.value, best_epoch=e.epoch)


def _reached(s: RunLimits, e: steps.LimitReached, _: Cause) -> RunLimits:
    return replace(s, reached=e.limit)


def _end_ordered(s: RunLimits, e: control.EndOrdered, at: Cause) -> RunLimits:
    return replace(s, end=OrderedEnd(e.epochs, e.steps, at), reached=s.reached if s.is_spent else None)


def _config_changed(s: RunLimits, e: run.ConfigChanged, _: Cause) -> RunLimits:
    # The newest word counts: another end in the configuration takes the place of one that was ordered before.
    s = replace(s, end=None, reached=None) if any(map(is_of_end, e.keys)) else s
    # A value of another metric cannot be compared. `patience` counts on from the best epoch so far.
    return replace(s, best=None) if "keep_best" in e.keys else s


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
    control.EndOrdered: _end_ordered,
    run.ConfigChanged: _config_changed,
}
