"""The rules of emergencies and of conservative mode: orders, what each level leads to, when each is over.

| level | Leyline's | what follows |
|---|---|---|
| MINOR | NOTICE | a record |
| MAJOR | ELEVATED | a rollback by the full tier |
| SEVERE | CONSERVATIVE | conservative mode, and a rollback: the fast tier if it has a snapshot, else the full one |
| CRITICAL | HALT | the trainer is frozen through the shared page; only an operator can resume the run |

An operator may raise MAJOR or SEVERE during a re-run or while the trainer is built. The rollback then begins after
that, and at once in a pause without a trainer. During another rollback, or if the run is frozen, the emergency is only
recorded. The event says which (`follows`), and the order is done when that is done. MAJOR saves nothing of the state
that it leaves (decision 0012). (Fact sheet B.4; the deadlines are in `BUDGETS`.)
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.health.breaker import may_leave_conservative
from tolariad.core.decision import Decision
from tolariad.core.engine import At

_NONE_LEFT: Final = "the run has gone back twice to every checkpoint that is left"


def after_epoch(_: q.ReadsHealth, event: m.EpochFinished, at: At[q.ReadsHealth]) -> Decision | None:
    """End an emergency that was raised before this epoch: the epoch was healthy."""
    s = at.was.emergency
    if s.level is None or s.troubled:
        return None
    return Decision((m.EmergencyCleared(why=f"epoch {event.epoch} was healthy"),))


def order(state: q.ReadsHealth, command: m.RaiseEmergency) -> m.EmergencyRaised | m.Refusal:
    """Raise the emergency that an operator ordered."""
    phase = state.run.phase
    if phase in st.TERMINAL or phase is st.Phase.STOPPING:
        why = f"the run is {phase.value}; an emergency needs one that is not"
        return m.Refusal("WrongPhase", why)
    follows, target = q.emergency_plan(state, command.level)
    if follows is m.Follows.RECORD and (target := q.target_for_later(state, command.level)) is not None:
        follows = m.Follows.ROLLBACK
    return m.EmergencyRaised(
        level=command.level,
        why=command.reason or "an operator raised it",
        follows=follows,
        checkpoint=target.id if target else "",
    )


def carry_out(state: q.ReadsHealth, event: m.EmergencyRaised, _: At[q.ReadsHealth]) -> Decision | None:
    """Do what the event says. If the run goes back by itself, it lowers its learning rates."""
    if event.follows is m.Follows.HALT:
        # The operator ordered a rollback, not a halt: say why the run halts.
        is_instead = event.actor is not None and event.level is not m.Level.CRITICAL
        return _halt(state, f"{event.why}; and {_NONE_LEFT}" if is_instead else event.why)
    target = q.restorable(state, event.checkpoint)
    if event.follows is not m.Follows.ROLLBACK or target is None:
        return None
    if q.may_go_back(state) or (state.run.phase is st.Phase.PAUSED and not state.trainer.alive):
        factor = state.run.policy.rate_factor if event.actor is None else 1.0
        rollback = q.rollback_begun(state, target, event.why, event.otherwise)
        return Decision((replace(rollback, rate_factor=factor),))
    asked = m.RollbackRequested(
        checkpoint=target.id,
        tier=m.tier_of(event.level) or m.Tier.FULL,
        actor=event.actor,
        step=target.step,
        otherwise=m.RefusalPolicy.HALT,
    )
    return Decision((asked,))


def after_refusal(
    state: q.ReadsHealth, report: m.RollbackRefusedReport | m.StrategyVoted, at: At[q.ReadsHealth]
) -> Decision | None:
    """Halt the run if no target was left for its rollback, and the rollback asks for a halt then."""
    opened = at.was.rollbacks.open
    if opened is None or state.rollbacks.open is not None or opened.otherwise is not m.RefusalPolicy.HALT:
        return None
    return _halt(state, q.given_up(opened, report))


def overdue(state: q.ReadsHealth, given: m.RollbackOverdue, _: At[q.ReadsHealth]) -> Decision | None:
    """Halt the run: its rollback exceeded the deadline, so the model's state is not known."""
    opened = state.rollbacks.open
    if opened is None or opened.id != given.rollback:
        return None
    took = f"was not done {q.rollback_deadline_s(state):.0f} s after training stood still for it"
    return _halt(state, f"rollback {opened.id} to {opened.checkpoint} {took}")


def _halt(state: q.ReadsHealth, why: str) -> Decision:
    """Freeze the run: the gate closes with this event and the trainer is ended. Only an operator can resume it.

    The two are one block, not a reaction to RunFrozen. A trainer that cannot be killed freezes the run, too, and must
    not be killed again.
    """
    if state.run.phase is st.Phase.FROZEN:
        return Decision()
    living = state.trainer
    kill = (m.KillTrainer(incarnation=living.incarnation, why=why),) if living.alive else ()
    return Decision((m.RunFrozen(why=why),), kill)


# -- conservative mode ------------------------------------------------------------------------------------------------


def after_violation(state: q.ReadsHealth, _: m.LrViolationDetected, at: At[q.ReadsHealth]) -> Decision:
    """Enter conservative mode after enough rate violations."""
    return Decision(q.conservative_mode_entered(state, q.reason_for_mode(state, at.now.mono)))


def after_open_breaker(state: q.ReadsHealth, _: m.StrategyTimedOut | m.BreakerSet, at: At[q.ReadsHealth]) -> Decision:
    """Enter conservative mode if a breaker is open now."""
    return Decision(q.conservative_mode_entered(state, q.reason_for_mode(state, at.now.mono)))


def after_severe(state: q.ReadsHealth, event: m.EmergencyRaised, _: At[q.ReadsHealth]) -> Decision:
    """Enter conservative mode after an emergency of level SEVERE."""
    return Decision(q.conservative_mode_entered(state, event.why if event.level is m.Level.SEVERE else None))


def leave_after_epoch(state: q.ReadsHealth, _: m.EpochFinished, at: At[q.ReadsHealth]) -> Decision | None:
    """Leave conservative mode after enough healthy epochs and time, if no reason for it is left."""
    s, mono = state.stability, at.now.mono
    if s.since is None or q.reason_for_mode(state, mono) is not None:
        return None
    healthy = 0 if state.overruns.slow_boundaries else s.healthy_epochs
    if not may_leave_conservative(healthy_epochs=healthy, since=s.since / 1e9, now=mono / 1e9):
        return None
    seconds = max(0, mono - s.since) / 1e9
    return Decision((m.ConservativeModeLeft(healthy_epochs=s.healthy_epochs, seconds=seconds),))
