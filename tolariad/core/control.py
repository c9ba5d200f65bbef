"""An operator's orders: slice, apply table, and what each order does in each phase.

Invariants: an order is an event before it is acknowledged; a repeated id gets the first answer and changes nothing; what
is refused changes nothing, and is recorded only where the caller gave an id. It must not know: sockets, permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import bounds
from tolariad.core import checkpoints as ckpt_rules
from tolariad.core import disk as disk_rules
from tolariad.core import emergency as emergency_rules
from tolariad.core import quarantine as quarantine_rules
from tolariad.core import rates as rate_rules
from tolariad.core import rollback as rollback_rules
from tolariad.core import run as run_rules
from tolariad.core.decision import Accepted, Answer, Decision, Refusal
from tolariad.core.inputs import CommandReceived, SignalReceived
from tolariad.core.run import TERMINAL, TRAINING, Phase
from tolariad.core.vocabulary import Actor, AnyCommand, Event, control, quarantine, rollback, run, trainer
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import learning_rate as lr
from tolariad.core.vocabulary.base import ApplyTable, Cause

if TYPE_CHECKING:
    from tolariad.core.state import RunState

OUTCOMES_MAX: Final = 1000


class Outcome(msgspec.Struct, frozen=True):
    """The answer that the command with this id got: a sequence number, or an error and why.

    `command` is the name of its kind; "" in what an older version remembered.
    """

    id: str
    seq: int
    error: str = ""
    why: str = ""
    command: str = ""


class Control(msgspec.Struct, frozen=True):
    """Slice of RunState: outcomes by id, oldest first, and how many orders were accepted."""

    outcomes: tuple[Outcome, ...] = ()
    accepted: int = 0

    def outcome(self, id_: str) -> Outcome | None:
        """The outcome of the command `id_`, while it is remembered."""
        return next((one for one in reversed(self.outcomes) if one.id == id_), None) if id_ else None


_Order = (
    control.PauseRequested
    | control.ResumeRequested
    | control.StopRequested
    | control.CheckpointRequested
    | control.NoteAdded
    | lr.RateOrdered
    | rollback.RollbackRequested
    | rollback.EmergencyRaised
    | quarantine.QuarantineAdded
    | quarantine.QuarantineRemoved
)


# By what each is recorded: whether an id is repeated, or given to an order of another kind, shows by that.
_COMMAND: Final[dict[type[Event], type[control.Command]]] = {
    control.PauseRequested: control.Pause,
    control.ResumeRequested: control.Resume,
    control.StopRequested: control.Stop,
    control.CheckpointRequested: control.Checkpoint,
    control.NoteAdded: control.Note,
    lr.RateOrdered: lr.LrSet,
    rollback.RollbackRequested: rollback.Rollback,
    rollback.EmergencyRaised: rollback.RaiseEmergency,
    quarantine.QuarantineAdded: quarantine.QuarantineAdd,
    quarantine.QuarantineRemoved: quarantine.QuarantineRemove,
}


def _remember(s: Control, outcome: Outcome) -> tuple[Outcome, ...]:
    return (*s.outcomes, outcome)[-OUTCOMES_MAX:] if outcome.id else s.outcomes


def _accepted(s: Control, e: _Order, at: Cause) -> Control:
    return replace(
        s, outcomes=_remember(s, Outcome(e.id, at.seq, command=_COMMAND[type(e)].__name__)), accepted=s.accepted + 1
    )


def _perhaps(s: Control, e: _Order, at: Cause) -> Control:
    """An order only where somebody gave it: the run does the same on its own account."""
    return s if e.actor is None else _accepted(s, e, at)


def _refused(s: Control, e: control.CommandRefused, at: Cause) -> Control:
    return replace(s, outcomes=_remember(s, Outcome(e.id, at.seq, e.error, e.why, e.command)))


APPLY: Final[ApplyTable] = {
    control.PauseRequested: _accepted,
    control.ResumeRequested: _accepted,
    control.StopRequested: _accepted,
    control.CheckpointRequested: _accepted,
    control.NoteAdded: _accepted,
    lr.RateOrdered: _accepted,
    rollback.RollbackRequested: _accepted,
    rollback.EmergencyRaised: _perhaps,
    quarantine.QuarantineAdded: _perhaps,
    quarantine.QuarantineRemoved: _accepted,
    control.CommandRefused: _refused,
}


def decide_command(state: RunState, received: CommandReceived) -> Decision:
    """Answer one order. Its first event, where there is one, carries the actor."""
    command = received.command
    if (wrong := bounds.refusal(command)) is not None:
        # Not recorded, id or not: what is wrong with it may be what an event cannot hold.
        return refused(state, wrong)
    known = state.control.outcome(command.id)
    if known is not None:
        return Decision(answer=_repeated(state, known, type(command).__name__))
    actor = replace(received.actor, reason=command.reason or received.actor.reason)
    decision = _decide(state, command, actor)
    if isinstance(decision.answer, Refusal) and command.id:
        return _record_refusal(command, decision.answer, actor)
    return decision


def _repeated(state: RunState, known: Outcome, command: str) -> Answer:
    if known.command not in ("", command):
        # Not recorded: what is remembered of the id is the answer to the order that had it first.
        why = f"the id {known.id!r} was given to another order, {known.command} (event {known.seq}); an id names one"
        return _refusal(state, "Refused", why)
    if known.error:
        return Refusal(error=known.error, why=known.why, phase=state.run.phase.value)
    return Accepted(known.seq)


def _record_refusal(command: AnyCommand, refusal: Refusal, actor: Actor) -> Decision:
    event = control.CommandRefused(
        command=type(command).__name__, id=command.id, error=refusal.error, why=refusal.why, actor=actor
    )
    return Decision((event,), (), refusal)


def refused(state: RunState, why: str) -> Decision:
    """Refuse an order with this sentence, and change nothing."""
    return Decision(answer=_refusal(state, "Refused", why))


def _refusal(state: RunState, error: str, why: str) -> Refusal:
    return Refusal(error=error, why=why, phase=state.run.phase.value)


def _wrong_phase(state: RunState, needed: str) -> Decision:
    phase = state.run.phase.value
    return Decision(answer=_refusal(state, "WrongPhase", f"the run is {phase}; this needs a run that is {needed}"))


def _decide(state: RunState, command: AnyCommand, actor: Actor) -> Decision:
    match command:
        case control.Pause():
            return _pause(state, command, actor)
        case control.Resume():
            return _resume(state, command, actor)
        case control.Stop():
            return decide_stop(state, command.mode, run.Origin.COMMAND, actor, command.id)
        case control.Checkpoint():
            return _checkpoint(state, command, actor)
        case control.Note(text=text):
            if not text.strip():
                return refused(state, "the note is empty; write at least one character that is not a space")
            return _accept(control.NoteAdded(text=text, id=command.id, actor=actor))
        case lr.LrSet():
            return rate_rules.decide_set(state, command, actor)
        case rollback.Rollback():
            return rollback_rules.decide_command(state, command, actor)
        case rollback.RaiseEmergency():
            return emergency_rules.decide_command(state, command, actor)
        case quarantine.QuarantineAdd():
            return quarantine_rules.decide_add(state, command, actor)
        case quarantine.QuarantineRemove():
            return quarantine_rules.decide_remove(state, command, actor)


def _accept(event: Event) -> Decision:
    return Decision((event,), (), Accepted())


def _pause(state: RunState, command: control.Pause, actor: Actor) -> Decision:
    if disk_rules.is_pausing(state):
        # From now on it is somebody's order too, and does not end when there is space.
        accepted = _accept(control.PauseRequested(id=command.id, actor=actor))
        stands = state.run.phase is Phase.PAUSED
        return accepted + Decision((run.RunPaused(applied_before_step=state.progress.step + 1),) if stands else ())
    if state.run.phase not in TRAINING:
        return _wrong_phase(state, "starting, recovering or running")
    if state.run.pause is not None:
        why = "a pause is ordered already; it takes effect at the next step boundary"
        return Decision(answer=_refusal(state, "WrongPhase", why))
    accepted = _accept(control.PauseRequested(id=command.id, actor=actor))
    if state.trainer.alive:
        return accepted + Decision((), (control.Hold(),))
    # Nothing trains (it waits for its next start), so the pause is reached at once; its cause is the event before it.
    return accepted + Decision((run.RunPaused(applied_before_step=state.progress.step + 1),))


def _resume(state: RunState, command: control.Resume, actor: Actor) -> Decision:
    phase = state.run.phase
    if phase not in (Phase.PAUSED, Phase.FROZEN, Phase.STOPPED) and state.run.pause is None:
        return _wrong_phase(state, "paused, frozen or stopped")
    if phase is Phase.STOPPING:
        return _wrong_phase(state, "paused, frozen or stopped")
    gap = state.run.gap
    if gap is not None and not command.after_gap:
        lost = run_rules.gap_words(gap.first_seq, gap.last_seq)
        why = f"{lost}; `tolaria resume --after-gap` goes on from event {gap.cause.seq - 1}"
        return Decision(answer=_refusal(state, "Frozen", why))
    if state.disk.low is not None:
        why = f"{state.disk.words}; the run goes on by itself when there is space"
        return Decision(answer=_refusal(state, "Refused", why))
    if gap is None and command.after_gap:
        return Decision(answer=_refusal(state, "Refused", "no events are missing; resume without --after-gap"))
    if phase is Phase.FROZEN and state.trainer.alive:
        why = f"{state.run.why}; end process {state.trainer.pid} first"
        return Decision(answer=_refusal(state, "Frozen", why))
    accepted = _accept(control.ResumeRequested(id=command.id, after_gap=command.after_gap, actor=actor))
    resumed = Decision((run.RunResumed(origin=run.Origin.COMMAND),))
    if state.trainer.alive:
        return accepted + resumed + Decision((), (control.Release(),))
    return accepted + resumed + Decision((), (run_rules.spawn(state),))


def _checkpoint(state: RunState, command: control.Checkpoint, actor: Actor) -> Decision:
    phase = state.run.phase
    if phase not in (Phase.RECOVERING, Phase.RUNNING, Phase.PAUSED) or not state.trainer.began:
        return _wrong_phase(state, "running")
    if not state.trainer.alive:
        why = "no trainer is alive at the moment; the newest checkpoint stands"
        return Decision(answer=_refusal(state, "WrongPhase", why))
    if state.disk.low is not None:
        return Decision(answer=_refusal(state, "Refused", f"{state.disk.words}; no checkpoint is begun"))
    if len(state.checkpoints.open) >= ckpt_rules.OPEN_MAX:
        why = f"{ckpt_rules.OPEN_MAX} checkpoints are being written already"
        return Decision(answer=_refusal(state, "Refused", why))
    accepted = _accept(control.CheckpointRequested(id=command.id, actor=actor))
    return accepted + ckpt_rules.take(state, ck.CheckpointReason.ORDERED)


_STRENGTH: Final = {run.StopMode.GRACEFUL: 0, run.StopMode.NOW: 1, run.StopMode.KILL: 2}


def decide_signal(state: RunState, received: SignalReceived) -> Decision:
    """The first signal stops at the next boundary with a checkpoint, the second at once."""
    mode = run.StopMode.GRACEFUL if received.count == 1 else run.StopMode.KILL
    actor = Actor(program="signal", reason=received.name)
    return decide_stop(state, mode, run.Origin.SIGNAL, actor, "")


def decide_stop(state: RunState, mode: run.StopMode, origin: run.Origin, actor: Actor, id_: str) -> Decision:
    """Order a stop, or a stronger one while one is under way."""
    phase = state.run.phase
    if phase in TERMINAL:
        # Nothing is left to stop but the daemon that answers.
        exit_ = run.ExitDaemon(code=0, why=f"the run is {phase.value}")
        return Decision((), (exit_,), Accepted(state.seq))
    if phase is Phase.FROZEN and origin is run.Origin.SIGNAL:
        return _leave_frozen(state)
    order = state.run.stop
    if order is not None and _STRENGTH[mode] <= _STRENGTH[order.mode]:
        return _wrong_phase(state, "not stopping already")
    asked = _accept(control.StopRequested(mode=mode, origin=origin, id=id_, actor=actor))
    return asked + _stop_effects(state, mode)


def _leave_frozen(state: RunState) -> Decision:
    """A signal ends the daemon and not the halt: a reboot must not wake what only an operator may (decision 0004)."""
    exit_ = run.ExitDaemon(code=0, why=f"the run stands frozen ({state.run.why}) until an operator goes on")
    living = state.trainer
    if not living.alive:
        return Decision((), (exit_,), Accepted(state.seq))
    kill = trainer.KillTrainer(incarnation=living.incarnation, why="the daemon was told to end")
    return Decision((), (kill, exit_), Accepted(state.seq))


def _stop_effects(state: RunState, mode: run.StopMode) -> Decision:
    living = state.trainer
    if not living.alive:
        return run_rules.stand_still(state, mode)
    if mode is run.StopMode.KILL or not living.began or state.run.phase is Phase.FROZEN:
        return Decision((), (trainer.KillTrainer(incarnation=living.incarnation, why="a stop was ordered"),))
    if mode is run.StopMode.NOW:
        return Decision((), (trainer.ExitTrainer(),))
    if living.held:
        return last_checkpoint(state, rerunning=state.rerun.open is not None)
    return Decision((), (control.Hold(),))


def decide_held(state: RunState, report: control.HeldReport) -> Decision:
    """The trainer stands at a boundary: the pause is reached, or the stop takes its checkpoint."""
    if state.run.phase is Phase.STOPPING:
        return last_checkpoint(state, rerunning=report.rerunning)
    pause = state.run.pause
    if pause is None or state.run.phase not in TRAINING:
        return Decision()
    return Decision((run_rules.paused(state, pause, report.step),))


def last_checkpoint(state: RunState, *, rerunning: bool) -> Decision:
    """Before the end: one more checkpoint, unless a re-run is cut short, the newest one is of this step, or space is short."""
    newest = state.checkpoints.newest
    if rerunning or state.disk.low is not None or (newest is not None and newest.step == state.progress.step):
        return Decision((), (trainer.ExitTrainer(),))
    order = state.run.stop
    return ckpt_rules.take(state, ck.CheckpointReason.STOP, order.cause if order else None)
