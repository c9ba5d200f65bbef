"""What the run does about a finding: slice, apply table, the decision; accuracy that collapses, steps that stall.

| finding | before its update | a step late (CUDA without `detect.sync`) |
|---|---|---|
| NON_FINITE | the trainer skips it (`detect.skip`), else MAJOR | MAJOR |
| SPIKE | the trainer skips it (`detect.skip`), else a record | a record |
| SUSTAINED | MAJOR: a rollback | the same |
| EXPLOSION | SEVERE: a rollback, from memory if possible | the same |
| COLLAPSE | a record after one validation; MAJOR after two in a row | |
| RISE, SHIFT, STALL | a record: the update is made | a record |

If the same place was left twice and the finding comes again, a third rollback would not help. The run then halts if the
value is not finite or explodes, or if `detect.halt` is set. Otherwise it goes on in conservative mode and says so
(`InstabilityDetected.goes_on`): a curriculum, a target network or a new term of the loss looks like this, too. After an
operator has resumed a halted run, only values that are not finite halt it there again.

Invariants: a trainer that asks is always answered: by a rollback, by its end, or by GoOn. If nothing may be done (policy,
another rollback, a run that ends), the update is made and the finding is only recorded.
It must not know: windows, averages of steps, tensors.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.checkpoints import words as ck
from tolariad.core.decision import Decision
from tolariad.core.detection import NO_LIMIT, Action, Finding, Signal, Verdict, accuracy_collapsed, is_stalled
from tolariad.core.health import conservative_slice as conservative
from tolariad.core.health import detection_words as det
from tolariad.core.health import emergency_rules
from tolariad.core.health.quarantine_words import Batches
from tolariad.core.rollback import target_ask as targets
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.phases import tier_of
from tolariad.core.run import words as run
from tolariad.core.run.slice import Phase
from tolariad.core.steps import words as steps
from tolariad.core.steps.slice import instability
from tolariad.core.trainer import words as trainer
from tolariad.core.trainer.slice import refused
from tolariad.core.vocabulary import Event

if TYPE_CHECKING:
    from tolariad.core.engine import At
    from tolariad.core.rollback.target_ask import Place
    from tolariad.core.state import RunState

# The average of the accuracy follows the last few validations; before there are some, nothing can have collapsed.
_ACCURACY_SHARE: Final = 0.2
_VALIDATIONS_MIN: Final = 3
# So many validations in a row must show a collapse before the run goes back.
_FALLEN_TO_ACT: Final = 2
_STEP_SHARE: Final = 1 / 16
# A finding at most so many steps after the last one is of the same place.
_NEAR: Final = 256
_RETURNS_MAX: Final = targets.RETURNS_MAX


class Asked(msgspec.Struct, frozen=True):
    """The trainer waits before update `step` while the run tries to go back. `lost`: it cannot go on from here."""

    step: int
    lost: bool = False


class Trouble(msgspec.Struct, frozen=True):
    """The place that the run went back from, and how often. A loss above `ceiling` has exploded; 0 if that is not known.

    `frozen`: the run halted there; `granted`: an operator resumed it after that.
    """

    step: int
    returns: int
    ceiling: float
    frozen: bool = False
    granted: bool = False


class Instability(msgspec.Struct, frozen=True):
    """Slice of RunState: findings, the open question, and the averages that accuracy and time are compared with.

    `fallen`: validations in a row whose accuracy had collapsed; the third one is the new level. `sound_step`: the step of
    the last one that had not. `chance`: the accuracy of guessing, if the configuration tells it.
    """

    found: int = 0
    asked: Asked | None = None
    accuracy: float | None = None
    validations: int = 0
    fallen: int = 0
    step_s: float = 0.0
    last_mono: int = 0
    trouble: Trouble | None = None
    chance: float | None = None
    sound_step: int = 0


def _configured(s: Instability, e: run.RunStarted | run.ConfigChanged, _: Cause) -> Instability:
    return replace(s, chance=e.policy.chance)


def _detected(s: Instability, e: det.InstabilityDetected, _: Cause) -> Instability:
    trouble = _trouble(s.trouble, e)
    asked = Asked(e.step, _is_lost(trouble, e)) if e.asks and e.level is not None else s.asked
    return replace(s, found=s.found + 1, asked=asked, trouble=trouble)


def _trouble(known: Trouble | None, e: det.InstabilityDetected) -> Trouble | None:
    """A level that keeps rising is one place as long as the next finding is near the last one."""
    near = _near(known, e.step)
    if e.level is None:
        return replace(near, step=e.step) if near is not None and e.goes_on else known
    if near is None:
        return Trouble(e.step, 1, e.explosion)
    return replace(near, step=e.step, returns=near.returns + 1, ceiling=near.ceiling or e.explosion)


def _near(known: Trouble | None, step: int) -> Trouble | None:
    return known if known is not None and step <= known.step + _NEAR else None


def _is_lost(near: Trouble | None, found: det.InstabilityDetected | Verdict) -> bool:
    """Is the value not finite, or has the loss exploded? Then the run cannot go on from here."""
    if found.signal is Signal.ACCURACY:
        return False
    above = near is not None and near.ceiling != 0.0 and found.signal is Signal.LOSS and found.value > near.ceiling
    return above or found.finding is Finding.EXPLOSION or not isfinite(found.value)


def _forgotten(s: Instability, e: rb.RollbackRequested | rb.EmergencyRaised, _: Cause) -> Instability:
    """An operator goes back: what the run tried before says nothing about what is found after that."""
    return s if e.actor is None else replace(s, trouble=None)


def _frozen(s: Instability, _: run.RunFrozen, __: Cause) -> Instability:
    return s if s.trouble is None else replace(s, trouble=replace(s.trouble, frozen=True))


def _resumed(s: Instability, e: run.RunResumed, at: Cause) -> Instability:
    known = s.trouble
    granted = replace(known, granted=True) if known is not None and known.frozen else known
    return _elsewhere(replace(s, trouble=granted), e, at)


def _stepped(s: Instability, e: steps.StepCompleted, _: Cause) -> Instability:
    step_s, last = s.step_s, s.last_mono
    if last and e.mono > last:
        took = (e.mono - last) / 1e9
        step_s = took if step_s == 0.0 else step_s + (took - step_s) * _STEP_SHARE
    return Instability(
        s.found, None, s.accuracy, s.validations, s.fallen, step_s, e.mono, s.trouble, s.chance, s.sound_step
    )


def _answered(s: Instability, _: Event, __: Cause) -> Instability:
    return replace(s, asked=None, last_mono=0)


def _elsewhere(s: Instability, _: Event, __: Cause) -> Instability:
    """What comes between this step and the next is no part of either."""
    return replace(s, last_mono=0) if s.last_mono else s


def _validated(s: Instability, e: steps.ValidationFinished, _: Cause) -> Instability:
    accuracy = e.metrics.get("accuracy")
    if accuracy is None:
        return s
    counted = replace(s, validations=s.validations + 1, last_mono=0)
    if s.accuracy is None:
        known = accuracy if accuracy == accuracy else None  # noqa: PLR0124 - not a NaN
        return replace(counted, accuracy=known, sound_step=e.step)
    if _collapse(s, accuracy) is None:
        average = s.accuracy + (accuracy - s.accuracy) * _ACCURACY_SHARE
        return replace(counted, accuracy=average, fallen=0, sound_step=e.step)
    if s.fallen < _FALLEN_TO_ACT:
        return replace(counted, fallen=s.fallen + 1)
    # The run did not go back, or that did not help: from now on this is the level.
    level = accuracy if accuracy == accuracy else s.accuracy  # noqa: PLR0124
    return replace(counted, accuracy=level, fallen=0, sound_step=e.step)


APPLY: Final[ApplyTable] = {
    run.RunStarted: _configured,
    run.ConfigChanged: _configured,
    det.InstabilityDetected: _detected,
    steps.StepCompleted: _stepped,
    steps.StepSkipped: _elsewhere,
    steps.EpochStarted: _elsewhere,
    steps.EpochFinished: _elsewhere,
    steps.ValidationFinished: _validated,
    ck.CheckpointBegun: _elsewhere,
    ck.TrainingStarted: _answered,
    run.RunPaused: _elsewhere,
    run.RunFrozen: _frozen,
    run.RunResumed: _resumed,
    rb.RollbackRequested: _forgotten,
    rb.EmergencyRaised: _forgotten,
    rb.RollbackAborted: _elsewhere,
    trainer.TrainerDied: _answered,
    trainer.TrainerEnded: _answered,
}


def sentence(found: det.InstabilityDetected) -> str:
    """What was found, in words."""
    seen = f"{found.finding.value}: {found.signal.value} {found.value:.6g} at step {found.step}"
    if found.limit >= NO_LIMIT:
        # Too early in the run to say what is usual.
        return seen
    return f"{seen} (usual {found.baseline:.6g}, limit {found.limit:.6g})"


def _level(verdict: Verdict) -> rb.Level | None:
    """How grave the finding is; None if it is only recorded. A single batch is no reason to go back, unless its values are
    not finite and its update is made.
    """
    match verdict.action:
        case Action.EMERGENCY:
            return rb.Level.SEVERE
        case Action.ROLLBACK:
            return rb.Level.MAJOR
        case Action.SKIP if verdict.finding is Finding.NON_FINITE:
            return rb.Level.MAJOR
        case _:
            return None


def reported(state: RunState, report: det.InstabilityReport, _: At[RunState]) -> Decision | None:
    """The trainer found something that it may not decide on itself."""
    at = state.progress.step
    if report.late and report.step != at:
        # It crossed with a rollback: its step is abandoned.
        return None
    if not report.late and (report.step != at + 1 or state.rerun.open is not None):
        return refused(state, f"step {report.step} was judged, but the next step is {at + 1}")
    found = instability(report.verdict, step=report.step, epoch=report.epoch, batch=report.batch)
    found = replace(found, asks=not report.late, first_batch=report.first_batch)
    return Decision((_judged(state, found, _level(report.verdict)),))


def _judged(state: RunState, found: det.InstabilityDetected, level: rb.Level | None) -> det.InstabilityDetected:
    """The finding with what it calls for: an emergency of `level`, or to go on although it calls for one."""
    near = _near(state.instability.trouble, found.step)
    found = replace(found, returns=near.returns if near else 0)
    if level is None or not state.run.policy.detect_rollback or not emergency_rules.may_go_back(state):
        return found
    if near is not None and near.granted and isfinite(found.value):
        return replace(found, goes_on=True)
    may_return = _target(state, found, level) is not None and found.returns < _RETURNS_MAX
    acts = may_return or _is_lost(near, found) or state.run.policy.detect_halt
    return replace(found, level=level) if acts else replace(found, goes_on=True)


def _target(state: RunState, found: det.InstabilityDetected, level: rb.Level) -> Place | None:
    """Where to; after a collapse, to a place from before the first validation that showed it."""
    until = state.instability.sound_step if found.signal is Signal.ACCURACY else None
    return targets.newest(state, tier_of(level) or rb.Tier.FULL, until)


def raise_emergency(state: RunState, event: det.InstabilityDetected, at: At[RunState]) -> Decision | None:
    """The emergency that the finding is. If rollbacks do not help, the run halts, or goes on in conservative mode."""
    was, near = at.was, _near(at.was.instability.trouble, event.step)
    level = event.level or rb.Level.MAJOR
    target = _target(was, event, level) if event.level is not None or event.goes_on else None
    if event.goes_on:
        is_granted = near is not None and near.granted and isfinite(event.value)
        return None if is_granted else conservative.entered(state, f"{_vain(event, target)}; the run goes on")
    if event.level is None:
        return None
    if target is None or event.returns >= _RETURNS_MAX:
        raised = rb.EmergencyRaised(level=level, why=_vain(event, target), follows=rb.Follows.HALT)
        return Decision((raised,))
    policy, suspects = state.run.policy, None
    if event.first_batch and policy.skip_batches:
        suspects = Batches(event.epoch, event.first_batch, event.batch)
    raised = rb.EmergencyRaised(
        level=level,
        why=sentence(event),
        follows=rb.Follows.ROLLBACK,
        checkpoint=target.id,
        # A run that cannot go on from here halts if no target can be used.
        otherwise=rb.Otherwise.HALT if _is_lost(near, event) or policy.detect_halt else rb.Otherwise.OLDER,
        suspects=suspects,
    )
    return Decision((raised,))


def _vain(found: det.InstabilityDetected, target: Place | None) -> str:
    """Why the run does not go back once more, in words."""
    why = f"{found.returns} rollbacks did not help" if target is not None else "there is no checkpoint to go back to"
    return f"{sentence(found)}; {why}"


def answer(state: RunState, event: det.InstabilityDetected, at: At[RunState]) -> Decision | None:
    """A trainer that asks hears of it by an order to go back, or by its end; else it goes on."""
    goes_back = state.rollbacks.open is not None and at.was.rollbacks.open is None
    halts = state.run.phase is Phase.FROZEN and at.was.run.phase is not Phase.FROZEN
    return None if not event.asks or goes_back or halts else Decision((), (det.GoOn(step=event.step),))


def after_refusal(state: RunState, report: rb.RollbackRefusedReport, at: At[RunState]) -> Decision | None:
    """No target could be used. A trainer that asked still waits: the run halts, or it goes on in conservative mode."""
    opened, asked = at.was.rollbacks.open, state.instability.asked
    if opened is None or state.rollbacks.open is not None:
        return None
    why = f"rollback {opened.id}: {report.file}: {report.why}"
    if asked is None or opened.otherwise is rb.Otherwise.HALT:
        return emergency_rules.after_refusal(state, opened, why)
    return conservative.entered(state, f"{why}; the run goes on") + Decision((), (det.GoOn(step=asked.step),))


# -- accuracy and time -------------------------------------------------------------------------------------------------


def _collapse(s: Instability, accuracy: float) -> Verdict | None:
    return accuracy_collapsed(accuracy, s.accuracy, s.chance) if s.validations >= _VALIDATIONS_MIN else None


def after_validation(_: RunState, event: steps.ValidationFinished, at: At[RunState]) -> Decision | None:
    """Has the accuracy collapsed? One validation may be wrong: it is recorded. After two in a row the run goes back, to a
    checkpoint from before the first of them.
    """
    was, accuracy = at.was, event.metrics.get("accuracy")
    s = was.instability
    verdict = None if accuracy is None else _collapse(s, accuracy)
    if verdict is None or s.fallen >= _FALLEN_TO_ACT:
        return None
    found = instability(verdict, step=event.step, epoch=event.epoch, batch=was.progress.batch)
    return Decision((_judged(was, found, rb.Level.MAJOR if s.fallen + 1 == _FALLEN_TO_ACT else None),))


def stalled(_: RunState, event: steps.StepCompleted, at: At[RunState]) -> Decision | None:
    """A record of a step that took far longer than others."""
    before = at.was.instability
    if not before.last_mono or before.step_s == 0.0:
        return None
    verdict = is_stalled((event.mono - before.last_mono) / 1e9, before.step_s)
    if verdict is None:
        return None
    return Decision((instability(verdict, step=event.step, epoch=event.epoch, batch=event.batch),))
