"""What follows from what the detector finds: slice, apply table, the decision, accuracy that collapses, steps that stall.

| finding | before its update | a step late (CUDA without `detect.sync`) |
|---|---|---|
| NON_FINITE, SPIKE | skipped by the trainer (`detect.skip`), else MAJOR | NON_FINITE: MAJOR; SPIKE: a record |
| SUSTAINED, DIVERGENCE | MAJOR: a rollback | the same |
| EXPLOSION | SEVERE: a rollback, from memory where that can be | the same |
| COLLAPSE | MAJOR, after the validation | |
| SHIFT, STALL | a record: the update is made; time never changes a weight | a record |

What is found again where the run went back from twice already is in the data or the landscape, not chance: a curriculum, a
target network, a term of the loss that comes in. Short of an explosion it is the level from then on: recorded, the update
is made. An explosion goes further back until the run halts; an operator who then lets it go on has said that it may.

Invariants: a trainer that asks is always answered, by a rollback, by its end or by GoOn; where nothing may be done (policy,
another rollback, a run that ends) the update is made and the finding stands in the journal alone.
It must not know: windows, averages of steps, tensors.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import emergency as emergency_rules
from tolariad.core.decision import Decision
from tolariad.core.detection import NO_LIMIT, Action, Finding, Signal, Verdict, accuracy_collapsed, is_stalled
from tolariad.core.run import Phase
from tolariad.core.steps import instability
from tolariad.core.targets import RETURNS_MAX
from tolariad.core.trainer import refused
from tolariad.core.vocabulary import Event, run, steps, trainer
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import detection as det
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary.base import ApplyTable, Cause
from tolariad.core.vocabulary.quarantine import Batches

if TYPE_CHECKING:
    from tolariad.core.engine import At
    from tolariad.core.state import RunState

# The average of the accuracy follows the last few validations; before there are some, nothing can have collapsed.
_ACCURACY_SHARE: Final = 0.2
_VALIDATIONS_MIN: Final = 3
_STEP_SHARE: Final = 1 / 16
# So many steps behind a finding the next one is of the same place: as far as the slow average looks back.
_NEAR: Final = 256
_SHIFTS: Final = (Finding.SUSTAINED, Finding.DIVERGENCE)


class Asked(msgspec.Struct, frozen=True):
    """The trainer stands before update `step` until it is told what follows."""

    step: int
    level: rb.Level
    why: str


class Trouble(msgspec.Struct, frozen=True):
    """Where the run went back from, how often. `ceiling`: below it the loss has not exploded, as of the first time there.

    `frozen`: it halted there; `granted`: an operator let it go on after that.
    """

    step: int
    returns: int
    ceiling: float
    frozen: bool = False
    granted: bool = False


class Instability(msgspec.Struct, frozen=True):
    """Slice of RunState: findings, the open question, and the averages that accuracy and time are held against.

    `collapsed`: the last validation fell that far; if the next does too, and nobody went back, that is the level now.
    `chance`: the accuracy of guessing, where the configuration tells it.
    """

    found: int = 0
    asked: Asked | None = None
    accuracy: float | None = None
    validations: int = 0
    collapsed: bool = False
    step_s: float = 0.0
    last_mono: int = 0
    trouble: Trouble | None = None
    chance: float | None = None


def _configured(s: Instability, e: run.RunStarted | run.ConfigChanged, _: Cause) -> Instability:
    return replace(s, chance=e.policy.chance)


def _detected(s: Instability, e: det.InstabilityDetected, _: Cause) -> Instability:
    asked = Asked(e.step, e.level or rb.Level.MAJOR, sentence(e)) if e.asks else s.asked
    return replace(s, found=s.found + 1, asked=asked, trouble=_trouble(s.trouble, e))


def _trouble(known: Trouble | None, e: det.InstabilityDetected) -> Trouble | None:
    """A level that rises on and on is one place, for as long as it is found within so many steps again."""
    near = _near(known, e.step)
    if e.level is None:
        return replace(near, step=e.step) if near is not None and e.finding in _SHIFTS else known
    return replace(near, step=e.step, returns=near.returns + 1) if near else Trouble(e.step, 1, e.explosion)


def _near(known: Trouble | None, step: int) -> Trouble | None:
    return known if known is not None and step <= known.step + _NEAR else None


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
    return Instability(s.found, None, s.accuracy, s.validations, s.collapsed, step_s, e.mono, s.trouble, s.chance)


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
        return replace(counted, accuracy=accuracy if accuracy == accuracy else None)  # noqa: PLR0124 - not a NaN
    if _collapse(s, accuracy) is None:
        return replace(counted, accuracy=s.accuracy + (accuracy - s.accuracy) * _ACCURACY_SHARE, collapsed=False)
    # Once a shift: fallen again, with nobody gone back, and it is what the run is like now.
    is_level = s.collapsed and accuracy == accuracy  # noqa: PLR0124
    return replace(counted, accuracy=accuracy if is_level else s.accuracy, collapsed=not s.collapsed)


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
    rb.RollbackAborted: _elsewhere,
    trainer.TrainerDied: _answered,
    trainer.TrainerEnded: _answered,
}


def sentence(found: det.InstabilityDetected) -> str:
    """Why the run goes back, in words."""
    seen = f"{found.finding.value}: {found.signal.value} {found.value:.6g} at step {found.step}"
    if found.limit >= NO_LIMIT:
        # Too early in the run to say what is usual.
        return seen
    return f"{seen}, where {found.baseline:.6g} was usual and {found.limit:.6g} the limit"


def _level(verdict: Verdict, report: det.InstabilityReport, *, acts: bool) -> rb.Level | None:
    """How grave it is; None where it is only recorded."""
    if not acts or verdict.action is Action.RECORD:
        return None
    if report.late and verdict.finding is Finding.SPIKE:
        return None
    return rb.Level.SEVERE if verdict.action is Action.EMERGENCY else rb.Level.MAJOR


def _is_level(known: Trouble | None, verdict: Verdict, step: int) -> bool:
    """Has the run gone back from here in vain, and is this nothing to halt for?"""
    near = _near(known, step)
    if near is None or not isfinite(verdict.value):
        return False
    if near.granted:
        return True
    shifts = verdict.finding in _SHIFTS and verdict.signal is Signal.LOSS
    return shifts and near.returns >= RETURNS_MAX and verdict.value <= near.ceiling


def reported(state: RunState, report: det.InstabilityReport, _: At[RunState]) -> Decision:
    """The trainer found what it may not decide on itself."""
    at = state.progress.step
    if report.late and report.step != at:
        # It crossed with a rollback: the step it speaks of is abandoned.
        return Decision()
    if not report.late and (report.step != at + 1 or state.rerun.open is not None):
        return refused(state, f"step {report.step} was judged where step {at + 1} comes next")
    known = state.instability.trouble
    acts = state.run.policy.detect_rollback and not _is_level(known, report.verdict, report.step)
    level = _level(report.verdict, report, acts=acts)
    found = instability(report.verdict, step=report.step, epoch=report.epoch, batch=report.batch)
    near = _near(known, report.step)
    found = replace(
        found,
        asks=not report.late,
        level=level,
        returns=near.returns if near else 0,
        first_batch=report.first_batch,
    )
    return Decision((found,))


def raise_emergency(state: RunState, event: det.InstabilityDetected, _: At[RunState]) -> Decision | None:
    """The emergency that the finding is, unless nothing can be done now. Whoever goes back passes over the suspects."""
    if event.level is None:
        return None
    follows, target = emergency_rules.plan(state, event.level)
    is_careful = event.level is rb.Level.SEVERE and not state.stability.conservative
    if follows is rb.Follows.RECORD and not is_careful:
        return None
    suspects = None
    if event.first_batch and follows is rb.Follows.ROLLBACK and state.run.policy.skip_batches:
        suspects = Batches(event.epoch, event.first_batch, event.batch)
    raised = rb.EmergencyRaised(
        level=event.level,
        why=sentence(event),
        follows=follows,
        checkpoint=target.id if target else "",
        suspects=suspects,
    )
    return Decision((raised,))


def answer(state: RunState, event: det.InstabilityDetected, at: At[RunState]) -> Decision | None:
    """A trainer that asks hears of it by an order to go back, or by its end; else it goes on."""
    goes_back = state.rollbacks.open is not None and at.was.rollbacks.open is None
    halts = state.run.phase is Phase.FROZEN and at.was.run.phase is not Phase.FROZEN
    return None if not event.asks or goes_back or halts else Decision((), (det.GoOn(step=event.step),))


def after_refusal(state: RunState, report: rb.RollbackRefusedReport, at: At[RunState]) -> Decision | None:
    """No target could be used: a trainer that asked still waits; what is left to go back to, the end of the run, or GoOn."""
    opened = at.was.rollbacks.open
    if opened is None or state.rollbacks.open is not None:
        return None
    why = f"rollback {opened.id}: {report.file}: {report.why}"
    asked = state.instability.asked
    if asked is None:
        return emergency_rules.after_refusal(state, opened, why)
    acted = emergency_rules.instead_of_refused(state, asked.level, asked.why)
    is_answer = any(isinstance(event, (rb.RollbackBegun, run.RunFrozen)) for event in acted.events)
    return acted if is_answer else acted + Decision((), (det.GoOn(step=asked.step),))


# -- accuracy and time -------------------------------------------------------------------------------------------------


def _collapse(s: Instability, accuracy: float) -> Verdict | None:
    return accuracy_collapsed(accuracy, s.accuracy, s.chance) if s.validations >= _VALIDATIONS_MIN else None


def after_validation(_: RunState, report: steps.ValidationFinished, at: At[RunState]) -> Decision:
    """Has the accuracy collapsed?"""
    state = at.was
    accuracy = report.metrics.get("accuracy")
    verdict = None if accuracy is None else _collapse(state.instability, accuracy)
    if verdict is None or state.instability.collapsed:
        return Decision()
    level_now = _is_level(state.instability.trouble, verdict, report.step)
    acts = state.run.policy.detect_rollback and not level_now
    level = rb.Level.MAJOR if acts else None
    found = instability(verdict, step=report.step, epoch=report.epoch, batch=state.progress.batch)
    return Decision((replace(found, level=level),))


def stalled(_: RunState, event: steps.StepCompleted, at: At[RunState]) -> Decision | None:
    """A record of a step that took far longer than others."""
    before = at.was.instability
    if not before.last_mono or before.step_s == 0.0:
        return None
    verdict = is_stalled((event.mono - before.last_mono) / 1e9, before.step_s)
    if verdict is None:
        return None
    return Decision((instability(verdict, step=event.step, epoch=event.epoch, batch=event.batch),))
