"""The limits that end a run before its epochs do, and the best epoch: slice, apply table.

Invariants: the time of training is folded from the journal, so it continues after a restart. It does not count while
nothing trains, during a pause, and during a re-run. A limit stays reached. The best epoch is one of the current branch.
The checkpoint kept as the best holds the end of that epoch, never a later state.
"""

from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.settings.changes import is_of_end
from tolariad.core.calc.steps.many import ManySteps
from tolariad.core.state.fates import anew, survives
from tolariad.core.state.fold import ApplyTable

_NS_MAX: Final = 2**63 - 1


class OrderedEnd(msgspec.Struct, frozen=True):
    """An end that was ordered: after epoch `epochs`, or after step `steps`."""

    epochs: int | None
    steps: int | None
    cause: m.Cause


class BranchLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of the limits belongs to a branch: its best validation, from which patience counts, the limit it reached.

    `best_batch`, `best_step`: the place of the best validation, if it is within `best_epoch`; else 0. `beyond`: the
    validations after it, less the epochs that ended after it.
    """

    best: float | None = None
    best_epoch: int = 0
    reached: m.Limit | None = None
    best_batch: int = 0
    best_step: int = 0
    beyond: int = 0

    @property
    def best_place(self) -> tuple[int, int]:
        """Return epoch and batch after which training goes on from the best validation; (1, 0) if there was none."""
        return (self.best_epoch, self.best_batch) if self.best_batch else (storable(self.best_epoch + 1), 0)

    def since_best(self, ended: int) -> int:
        """Return how many validations came after the best one, when `ended` epochs have ended."""
        return ended - self.best_place[0] + 1 + self.beyond


class RunLimits(BranchLimits, frozen=True, omit_defaults=False):
    """Slice of RunState. `clock_mono`: the time up to which training is counted; 0 while the clock is stopped.

    `best`: the best value on the current branch, of `best_epoch`. `end`: the end that was ordered; None: as configured.
    """

    trained_ns: Annotated[int, survives("`stop.hours` counts all hours of training, abandoned steps included")] = 0
    clock_mono: Annotated[int, anew("the time of training does not count until training has begun again")] = 0
    end: Annotated[OrderedEnd | None, survives("an operator's order, and not one of the steps")] = None

    @property
    def is_spent(self) -> bool:
        """Return whether the run has used up its hours, tokens or patience. Another end changes nothing then."""
        return self.reached in (m.Limit.HOURS, m.Limit.PATIENCE, m.Limit.TOKENS)

    def trained_until(self, mono: int) -> int:
        """Return the ns of training so far, at monotonic time `mono` of this boot."""
        return self.trained_ns + (max(0, mono - self.clock_mono) if self.clock_mono else 0)


def _tick(s: RunLimits, e: m.Event, _: m.Cause) -> RunLimits:
    """Count the time of training up to this event."""
    if not s.clock_mono:
        return s
    trained = s.trained_ns + max(0, e.mono - s.clock_mono)
    return replace(s, trained_ns=min(trained, _NS_MAX), clock_mono=e.mono)


def ticked(s: RunLimits, made: ManySteps) -> RunLimits:
    """Return the slice after many completed steps, as `_tick` counts each."""
    trained, clock = s.trained_ns, s.clock_mono
    if not clock:
        return s
    for mono in made.mono:
        if mono > clock:
            trained += mono - clock
        clock = mono
        if not clock:
            break
    return replace(s, trained_ns=min(trained, _NS_MAX), clock_mono=clock)


def _start_clock(s: RunLimits, e: m.Event, _: m.Cause) -> RunLimits:
    return replace(s, clock_mono=e.mono)


def _stop_clock(s: RunLimits, _: m.Event, __: m.Cause) -> RunLimits:
    return replace(s, clock_mono=0)


def _tick_and_stop(s: RunLimits, e: m.Event, at: m.Cause) -> RunLimits:
    return _stop_clock(_tick(s, e, at), e, at)


def _validated(s: RunLimits, e: m.ValidationFinished, at: m.Cause) -> RunLimits:
    s = _tick(s, e, at)
    if e.batch:
        return replace(s, beyond=s.beyond + 1)
    # Without any metric there was none: a loop does not validate after every epoch.
    return s if e.metrics or not s.best_epoch else replace(s, beyond=s.beyond - 1)


def _improved(s: RunLimits, e: m.ValidationImproved, _: m.Cause) -> RunLimits:
    return replace(s, best=e.value, best_epoch=e.epoch, best_batch=e.batch, best_step=e.step, beyond=0)


def _reached(s: RunLimits, e: m.LimitReached, _: m.Cause) -> RunLimits:
    return replace(s, reached=e.limit)


def _end_ordered(s: RunLimits, e: m.EndOrdered, at: m.Cause) -> RunLimits:
    return replace(s, end=OrderedEnd(e.epochs, e.steps, at), reached=s.reached if s.is_spent else None)


def _config_changed(s: RunLimits, e: m.ConfigChanged, _: m.Cause) -> RunLimits:
    # The newest word counts: another end in the configuration takes the place of one that was ordered before.
    s = replace(s, end=None, reached=None) if any(map(is_of_end, e.keys)) else s
    # A value of another metric cannot be compared. `patience` counts on from the best epoch so far.
    return replace(s, best=None) if "keep_best" in e.keys else s


APPLY: Final[ApplyTable] = {
    m.TrainingStarted: _start_clock,
    m.RerunBegun: _stop_clock,
    m.RerunFinished: _start_clock,
    m.StepCompleted: _tick,
    m.StepSkipped: _tick,
    m.ValidationFinished: _validated,
    m.EpochFinished: _tick,
    m.CheckpointCommitted: _tick,
    m.RunPaused: _tick_and_stop,
    m.RunFrozen: _tick_and_stop,
    m.RunResumed: _start_clock,
    m.TrainerStarted: _stop_clock,
    m.TrainerDied: _stop_clock,
    m.TrainerEnded: _stop_clock,
    m.ValidationImproved: _improved,
    m.LimitReached: _reached,
    m.EndOrdered: _end_ordered,
    m.ConfigChanged: _config_changed,
}
