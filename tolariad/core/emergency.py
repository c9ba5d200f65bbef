"""Emergencies: slice, apply table, what each level leads to.

| level | Leyline's | what follows |
|---|---|---|
| MINOR | NOTICE | a record |
| MAJOR | ELEVATED | a rollback by the full tier |
| SEVERE | CONSERVATIVE | conservative mode, and a rollback by the fast tier where it has a snapshot, else by the full one |
| CRITICAL | HALT | the trainer is frozen through the shared page; only an operator goes on |

An operator's MAJOR or SEVERE that comes while steps are run again, or while the trainer is built, leads back as soon as that
is over, and at once in a pause without a trainer; where another rollback is under way, or the run stands frozen, it is a record.
Its event says which (`follows`), and the order is done when that is. MAJOR saves nothing of the state it leaves (decision 0012).

Invariants: the level only rises, until a healthy epoch or an operator's order clears it. It must not know: who watches.
(Fact sheet B.4; the deadlines stand in `BUDGETS`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import conservative, phases, rollback_rules, targets
from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.inputs import RollbackOverdue
from tolariad.core.rollback import Open, deadline_s
from tolariad.core.run import TERMINAL, Phase
from tolariad.core.vocabulary import Actor, Event, run, steps, trainer
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary.base import ApplyTable, Cause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tolariad.core.engine import At
    from tolariad.core.state import RunState


class Emergency(msgspec.Struct, frozen=True):
    """Slice of RunState: the level there is, and how often any was raised. `troubled`: one was in the present epoch.

    `why` is of the event that set the level, or of a later one that halted the run: the one that stands frozen says the same.
    """

    level: rb.Level | None = None
    why: str = ""
    raised: int = 0
    troubled: bool = False


def _raised(s: Emergency, e: rb.EmergencyRaised, _: Cause) -> Emergency:
    level = phases.graver(s.level, e.level)
    says_why = level is not s.level or e.follows is rb.Follows.HALT
    return Emergency(level, e.why if says_why else s.why, s.raised + 1, troubled=True)


def _cleared(s: Emergency, _: Event, __: Cause) -> Emergency:
    return Emergency(None, "", s.raised)


def _epoch_started(s: Emergency, _: Event, __: Cause) -> Emergency:
    return replace(s, troubled=False) if s.troubled else s


def _epoch_finished(s: Emergency, e: Event, at: Cause) -> Emergency:
    """Healthy is one from whose very start none was raised."""
    return s if s.level is None or s.troubled else _cleared(s, e, at)


APPLY: Final[ApplyTable] = {
    rb.EmergencyRaised: _raised,
    rb.EmergencyCleared: _cleared,
    run.RunResumed: _cleared,
    steps.EpochStarted: _epoch_started,
    steps.EpochFinished: _epoch_finished,
}


def after_epoch(_: RunState, event: steps.EpochFinished, at: At[RunState]) -> Decision | None:
    """A healthy epoch ends the emergency that there was before its end."""
    s = at.was.emergency
    if s.level is None or s.troubled:
        return None
    return Decision((rb.EmergencyCleared(why=f"epoch {event.epoch} went by in health"),))


def overdue(state: RunState, given: RollbackOverdue, _: At[RunState]) -> Decision | None:
    """A rollback was not done in its time: nobody knows what the model holds now."""
    opened = state.rollbacks.open
    if opened is None or opened.id != given.rollback:
        return None
    limit_s = deadline_s(state)
    return halt(
        state,
        f"rollback {opened.id} to {opened.checkpoint} was not done {limit_s:.0f} s after training stood still for it",
    )


def order(state: RunState, command: rb.RaiseEmergency, actor: Actor) -> Decision:
    """An operator raises it."""
    phase = state.run.phase
    if phase in TERMINAL or phase is Phase.STOPPING:
        why = f"the run is {phase.value}; an emergency needs one that is not"
        return Decision(answer=Refusal(error="WrongPhase", why=why, phase=phase.value))
    why = actor.reason or "an operator raised it"
    acted = act(state, command.level, why)
    acted += _go_back_otherwise(state, command.level, actor, why)
    raised = rb.EmergencyRaised(
        level=command.level, why=why, id=command.id, actor=actor, follows=what_follows(acted.events)
    )
    return Decision((raised,), (), Accepted()) + acted


def what_follows(acted: Iterable[Event]) -> rb.Follows:
    """In a word, of the events that stand behind the emergency's own."""
    kinds = {type(event) for event in acted}
    if run.RunFrozen in kinds:
        return rb.Follows.HALT
    is_rollback = not kinds.isdisjoint((rb.RollbackBegun, rb.RollbackRequested))
    return rb.Follows.ROLLBACK if is_rollback else rb.Follows.RECORD


def act(state: RunState, level: rb.Level, why: str) -> Decision:
    """What the level leads to; its own event stands before this."""
    match level:
        case rb.Level.MINOR:
            return Decision()
        case rb.Level.CRITICAL:
            return halt(state, why)
        case rb.Level.MAJOR:
            return go_back(state, level, why)
        case rb.Level.SEVERE:
            return conservative.entered(state, why) + go_back(state, level, why)


def go_back(state: RunState, level: rb.Level, why: str) -> Decision:
    """A rollback on the run's own account; where nothing is left to go back to, the run halts."""
    if not _is_training(state) or not targets.may_begin(state):
        return Decision()
    target = targets.automatic(state, phases.tier_of(level) or rb.Tier.FULL)
    if target is None:
        return halt(state, f"{why}; and no checkpoint is left that was not gone back to twice")
    return Decision((rollback_rules.begun(state, target, why, rb.Otherwise.HALT),))


def after_refusal(state: RunState, opened: Open, why: str) -> Decision:
    """`opened` was given up for want of anything to go back to: where it was on the run's own account, the run halts."""
    return halt(state, why) if opened.otherwise is rb.Otherwise.HALT else Decision()


def _is_training(state: RunState) -> bool:
    return state.trainer.alive and state.trainer.began and state.rerun.open is None


def _go_back_otherwise(state: RunState, level: rb.Level, actor: Actor, why: str) -> Decision:
    """Where the trainer does not train yet: an order to go back, which is begun when it does."""
    tier, begun = phases.tier_of(level), state.rollbacks.asked is not None or not targets.may_begin(state)
    if tier is None or begun or _is_training(state) or state.run.phase is Phase.FROZEN:
        return Decision()
    target = targets.automatic(state, tier)
    if target is None:
        return Decision()
    if state.run.phase is Phase.PAUSED and not state.trainer.alive:
        # None will live before somebody says so.
        return Decision((rollback_rules.begun(state, target, why, rb.Otherwise.HALT),))
    asked = rb.RollbackRequested(
        checkpoint=target.id, tier=tier, actor=actor, step=target.step, otherwise=rb.Otherwise.HALT
    )
    return Decision((asked,))


def halt(state: RunState, why: str) -> Decision:
    """Frozen: the gate closes with this event, the trainer is ended, and only an operator's resume, rollback or stop goes on."""
    if state.run.phase is Phase.FROZEN:
        return Decision()
    frozen = Decision((run.RunFrozen(why=why),))
    if not state.trainer.alive:
        return frozen
    return frozen + Decision((), (trainer.KillTrainer(incarnation=state.trainer.incarnation, why=why),))
