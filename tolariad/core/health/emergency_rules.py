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

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.inputs import RollbackOverdue
from tolariad.core.rollback import phases
from tolariad.core.rollback import rules as rollback_rules
from tolariad.core.rollback import target_ask as targets
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import Open, deadline_s
from tolariad.core.rollback.target_ask import Place
from tolariad.core.run import words as run
from tolariad.core.run.slice import TERMINAL, Phase
from tolariad.core.snapshots.slice import place
from tolariad.core.steps import words as steps
from tolariad.core.trainer import words as trainer
from tolariad.core.vocabulary import Actor, Event

if TYPE_CHECKING:
    from tolariad.core.engine import At
    from tolariad.core.state import RunState


_NONE_LEFT: Final = "no checkpoint is left that was not gone back to twice"


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


def order(state: RunState, command: rb.RaiseEmergency, actor: Actor) -> Decision:
    """An operator raises it."""
    phase = state.run.phase
    if phase in TERMINAL or phase is Phase.STOPPING:
        why = f"the run is {phase.value}; an emergency needs one that is not"
        return Decision(answer=Refusal(error="WrongPhase", why=why, phase=phase.value))
    follows, target = plan(state, command.level)
    if follows is rb.Follows.RECORD and (target := _target_for_later(state, command.level)) is not None:
        follows = rb.Follows.ROLLBACK
    raised = rb.EmergencyRaised(
        level=command.level,
        why=actor.reason or "an operator raised it",
        id=command.id,
        actor=actor,
        follows=follows,
        checkpoint=target.id if target else "",
    )
    return Decision((raised,), (), Accepted())


def plan(state: RunState, level: rb.Level) -> tuple[rb.Follows, Place | None]:
    """What an emergency of this level leads to in this state, and where to, if that is a rollback.

    Its event says the same (`follows`, `checkpoint`), and `carry_out` does what the event says.
    """
    tier = phases.tier_of(level)
    halt_or_record = rb.Follows.RECORD if state.run.phase is Phase.FROZEN else rb.Follows.HALT
    if level is rb.Level.CRITICAL:
        return halt_or_record, None
    if tier is None or not may_go_back(state):
        return rb.Follows.RECORD, None
    target = targets.automatic(state, tier)
    # The run halts if nothing is left to go back to.
    return (halt_or_record if target is None else rb.Follows.ROLLBACK), target


def may_go_back(state: RunState) -> bool:
    """Does it train, with no other rollback under way and no end in progress?"""
    return _is_training(state) and targets.may_begin(state)


def _is_training(state: RunState) -> bool:
    return state.trainer.alive and state.trainer.began and state.rerun.open is None


def _target_for_later(state: RunState, level: rb.Level) -> Place | None:
    """Where an operator's emergency leads back to once the trainer trains; in a pause without one, at once."""
    tier, is_taken = phases.tier_of(level), state.rollbacks.asked is not None or not targets.may_begin(state)
    if tier is None or is_taken or _is_training(state) or state.run.phase is Phase.FROZEN:
        return None
    return targets.automatic(state, tier)


def carry_out(state: RunState, event: rb.EmergencyRaised, _: At[RunState]) -> Decision | None:
    """Do what the event says. The run on its own account lowers its learning rates when it goes back."""
    if event.follows is rb.Follows.HALT:
        # An operator wanted to go back, not to halt: say why the run halts.
        is_instead = event.actor is not None and event.level is not rb.Level.CRITICAL
        return halt(state, f"{event.why}; and {_NONE_LEFT}" if is_instead else event.why)
    target = place(state, event.checkpoint)
    if event.follows is not rb.Follows.ROLLBACK or target is None:
        return None
    if may_go_back(state) or (state.run.phase is Phase.PAUSED and not state.trainer.alive):
        factor = state.run.policy.rate_factor if event.actor is None else 1.0
        begun = rollback_rules.begun(state, target, event.why, event.otherwise)
        return Decision((replace(begun, rate_factor=factor),))
    asked = rb.RollbackRequested(
        checkpoint=target.id,
        tier=phases.tier_of(event.level) or rb.Tier.FULL,
        actor=event.actor,
        step=target.step,
        otherwise=rb.Otherwise.HALT,
    )
    return Decision((asked,))


def after_refusal(state: RunState, opened: Open, why: str) -> Decision:
    """`opened` was given up because no target could be used: the run halts if it was begun with that in mind."""
    return halt(state, why) if opened.otherwise is rb.Otherwise.HALT else Decision()


def overdue(state: RunState, given: RollbackOverdue, _: At[RunState]) -> Decision | None:
    """A rollback was not done in its time: nobody knows what the model holds now."""
    opened = state.rollbacks.open
    if opened is None or opened.id != given.rollback:
        return None
    took = f"was not done {deadline_s(state):.0f} s after training stood still for it"
    return halt(state, f"rollback {opened.id} to {opened.checkpoint} {took}")


def halt(state: RunState, why: str) -> Decision:
    """Freeze: the gate closes with this event and the trainer is ended. Only an operator's resume, rollback or stop goes on.

    One block, not a reaction to RunFrozen: a trainer that cannot be killed freezes the run, too, and is not killed again.
    """
    if state.run.phase is Phase.FROZEN:
        return Decision()
    living = state.trainer
    kill = (trainer.KillTrainer(incarnation=living.incarnation, why=why),) if living.alive else ()
    return Decision((run.RunFrozen(why=why),), kill)
