"""Findings: slice, apply table.

The slice counts findings. It holds the question of a trainer that waits and the place that the run went back from. It
also holds the averages that accuracy and step time are compared with.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict, accuracy_collapsed
from tolariad.core.state.fates import CONFIGURATION, COUNTER, anew, survives
from tolariad.core.state.fold import ApplyTable

# The average of the accuracy follows the last few validations. With fewer validations no collapse is reported.
_ACCURACY_SHARE: Final = 0.2
_VALIDATIONS_MIN: Final = 3
# How many validations in a row must show a collapse before the run goes back.
FALLEN_TO_ACT: Final = 2
_STEP_SHARE: Final = 1 / 16
# A finding at most this many steps after the last one belongs to the same place.
_NEAR: Final = 256


class WaitingTrainer(msgspec.Struct, frozen=True):
    """The trainer waits before update `step` while the run tries to go back. `lost`: it cannot go on from here."""

    step: int
    lost: bool = False


class Trouble(msgspec.Struct, frozen=True):
    """The place that the run went back from, and how often. A loss above `ceiling` has exploded; 0: not known.

    `frozen`: the run halted there. `granted`: an operator resumed it after that.
    """

    step: int
    returns: int
    ceiling: float
    frozen: bool = False
    granted: bool = False


class BranchInstability(msgspec.Struct, frozen=True):
    """What of the findings belongs to a branch: the averages that accuracy and step time are compared with."""

    accuracy: float | None = None
    validations: int = 0
    fallen: int = 0
    step_s: float = 0.0
    sound_step: int = 0


class Instability(BranchInstability, frozen=True):
    """Slice of RunState: findings, the open question, and the averages that accuracy and time are compared with.

    `fallen`: validations in a row whose accuracy had collapsed; the third one becomes the new level. `sound_step`: the
    step of the last one that had not. `chance`: the accuracy of guessing, if it is configured.
    """

    found: Annotated[int, COUNTER] = 0
    asked: Annotated[WaitingTrainer | None, anew("the rollback answers the question")] = None
    last_mono: Annotated[int, anew("the first step after the rollback has no earlier one to be timed from")] = 0
    trouble: Annotated[
        Trouble | None, survives("where the run went back from, and how often: else it would go back without end")
    ] = None
    chance: Annotated[float | None, CONFIGURATION] = None

    def near(self, step: int) -> Trouble | None:
        """Return the trouble of the place that `step` belongs to, or None."""
        known = self.trouble
        return known if known is not None and step <= known.step + _NEAR else None

    def collapse(self, accuracy: float) -> Verdict | None:
        """Return the verdict that the accuracy has collapsed, or None."""
        return (
            accuracy_collapsed(accuracy, self.accuracy, self.chance) if self.validations >= _VALIDATIONS_MIN else None
        )


def _configured(s: Instability, e: m.RunStarted | m.ConfigChanged, _: m.Cause) -> Instability:
    return replace(s, chance=e.policy.chance)


def _detected(s: Instability, e: m.InstabilityDetected, _: m.Cause) -> Instability:
    trouble = _trouble(s, e)
    asked = WaitingTrainer(e.step, is_lost(trouble, e)) if e.asks and e.level is not None else s.asked
    return replace(s, found=s.found + 1, asked=asked, trouble=trouble)


def _trouble(s: Instability, e: m.InstabilityDetected) -> Trouble | None:
    """Return the trouble after a finding.

    A level that keeps rising is one place, as long as each finding is near the last.
    """
    near = s.near(e.step)
    if e.level is None:
        return replace(near, step=e.step) if near is not None and e.goes_on else s.trouble
    if near is None:
        return Trouble(e.step, 1, e.explosion)
    return replace(near, step=e.step, returns=near.returns + 1, ceiling=near.ceiling or e.explosion)


def is_lost(near: Trouble | None, found: m.InstabilityDetected | Verdict) -> bool:
    """Return whether the value is not finite or the loss has exploded: then the run cannot go on from here."""
    if found.signal is Signal.ACCURACY:
        return False
    above = near is not None and near.ceiling != 0.0 and found.signal is Signal.LOSS and found.value > near.ceiling
    return above or found.finding is Finding.EXPLOSION or not isfinite(found.value)


def _forgotten(s: Instability, e: m.RollbackRequested | m.EmergencyRaised, _: m.Cause) -> Instability:
    """Forget the trouble when an operator goes back: the run's earlier attempts tell nothing about later findings."""
    return s if e.actor is None else replace(s, trouble=None)


def _frozen(s: Instability, _: m.RunFrozen, __: m.Cause) -> Instability:
    return s if s.trouble is None else replace(s, trouble=replace(s.trouble, frozen=True))


def _resumed(s: Instability, e: m.RunResumed, at: m.Cause) -> Instability:
    known = s.trouble
    granted = replace(known, granted=True) if known is not None and known.frozen else known
    return _elsewhere(replace(s, trouble=granted), e, at)


def _stepped(s: Instability, e: m.StepCompleted, _: m.Cause) -> Instability:
    step_s, last = s.step_s, s.last_mono
    if last and e.mono > last:
        took = (e.mono - last) / 1e9
        step_s = took if step_s == 0.0 else step_s + (took - step_s) * _STEP_SHARE
    return Instability(
        s.accuracy, s.validations, s.fallen, step_s, s.sound_step, s.found, None, e.mono, s.trouble, s.chance
    )


def _answered(s: Instability, _: m.Event, __: m.Cause) -> Instability:
    return replace(s, asked=None, last_mono=0)


def _elsewhere(s: Instability, _: m.Event, __: m.Cause) -> Instability:
    """Forget the time of the last step: what happens now belongs to no step."""
    return replace(s, last_mono=0) if s.last_mono else s


def _validated(s: Instability, e: m.ValidationFinished, _: m.Cause) -> Instability:
    accuracy = e.metrics.get("accuracy")
    if accuracy is None:
        return s
    counted = replace(s, validations=s.validations + 1, last_mono=0)
    if s.accuracy is None:
        known = accuracy if accuracy == accuracy else None  # noqa: PLR0124 - not a NaN
        return replace(counted, accuracy=known, sound_step=e.step)
    if s.collapse(accuracy) is None:
        average = s.accuracy + (accuracy - s.accuracy) * _ACCURACY_SHARE
        return replace(counted, accuracy=average, fallen=0, sound_step=e.step)
    if s.fallen < FALLEN_TO_ACT:
        return replace(counted, fallen=s.fallen + 1)
    # The run did not go back, or going back did not help: this is the new level.
    level = accuracy if accuracy == accuracy else s.accuracy  # noqa: PLR0124
    return replace(counted, accuracy=level, fallen=0, sound_step=e.step)


APPLY: Final[ApplyTable] = {
    m.RunStarted: _configured,
    m.ConfigChanged: _configured,
    m.InstabilityDetected: _detected,
    m.StepCompleted: _stepped,
    m.StepSkipped: _elsewhere,
    m.EpochStarted: _elsewhere,
    m.EpochFinished: _elsewhere,
    m.ValidationBegun: _elsewhere,
    m.ValidationFinished: _validated,
    m.CheckpointBegun: _elsewhere,
    m.TrainingStarted: _answered,
    m.RunPaused: _elsewhere,
    m.RunFrozen: _frozen,
    m.RunResumed: _resumed,
    m.RollbackRequested: _forgotten,
    m.EmergencyRaised: _forgotten,
    m.RollbackAborted: _elsewhere,
    m.TrainerDied: _answered,
    m.TrainerEnded: _answered,
}
