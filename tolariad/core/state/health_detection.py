"""Findings: slice, apply table.

The slice counts findings. It holds the question of a trainer that waits. It
also holds the averages that accuracy and step time are compared with.
"""

from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Verdict, accuracy_collapsed
from tolariad.core.calc.steps.many import ManySteps
from tolariad.core.state.fates import CONFIGURATION, COUNTER, anew
from tolariad.core.state.fold import ApplyTable

# The average of the accuracy follows the last few validations. With fewer validations no collapse is reported.
_ACCURACY_SHARE: Final = 0.2
_VALIDATIONS_MIN: Final = 3
# How many validations in a row must show a collapse before the run goes back.
FALLEN_TO_ACT: Final = 2
_STEP_SHARE: Final = 1 / 16


class WaitingTrainer(msgspec.Struct, frozen=True):
    """The trainer waits before update `step` while the run tries to go back."""

    step: int


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
    chance: Annotated[float | None, CONFIGURATION] = None

    def collapse(self, accuracy: float) -> Verdict | None:
        """Return the verdict that the accuracy has collapsed, or None."""
        return (
            accuracy_collapsed(accuracy, self.accuracy, self.chance) if self.validations >= _VALIDATIONS_MIN else None
        )


def _configured(s: Instability, e: m.RunStarted | m.ConfigChanged, _: m.Cause) -> Instability:
    return replace(s, chance=e.policy.chance)


def _detected(s: Instability, e: m.InstabilityDetected, _: m.Cause) -> Instability:
    return replace(s, found=s.found + 1, asked=WaitingTrainer(e.step) if e.asks and e.level is not None else s.asked)


def _stepped(s: Instability, e: m.StepCompleted, _: m.Cause) -> Instability:
    step_s, last = s.step_s, s.last_mono
    if last and e.mono > last:
        took = (e.mono - last) / 1e9
        step_s = took if step_s == 0.0 else step_s + (took - step_s) * _STEP_SHARE
    return Instability(s.accuracy, s.validations, s.fallen, step_s, s.sound_step, s.found, None, e.mono, s.chance)


def timed(s: Instability, made: ManySteps) -> Instability:
    """Return the slice after many completed steps, as `_stepped` gives it for each."""
    step_s, last = s.step_s, s.last_mono
    for mono in made.mono:
        if last and mono > last:
            took = (mono - last) / 1e9
            step_s = took if step_s == 0.0 else step_s + (took - step_s) * _STEP_SHARE
        last = mono
    return Instability(s.accuracy, s.validations, s.fallen, step_s, s.sound_step, s.found, None, last, s.chance)


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
    m.RunResumed: _elsewhere,
    m.RollbackAborted: _elsewhere,
    m.TrainerDied: _answered,
    m.TrainerEnded: _answered,
}
