"""The rules for an operator's orders: the path of all of them, and the orders that pause, resume, stop and note.

The rule of a command validates the order. It returns the fact that accepts it, or a refusal. Everything else reacts to
that fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc import bounds
from tolariad.core.calc.run.exits import of_signal
from tolariad.core.decision import Accepted, Answer, Decision
from tolariad.core.engine import At, Numbered
from tolariad.core.messages.vocabulary import AnyCommand


class Reads(Numbered, st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasTrainer, st.HasControl, Protocol):
    """The slices that the rules of orders read."""


S = TypeVar("S", bound=Reads)


# Returned by the rule of an order: the event that accepts it, or a refusal. A decision stands as it is.
_Found: TypeAlias = m.Event | m.Refusal | Decision


class Order(NamedTuple):
    """How an order is accepted, and the events that end it.

    `rule` takes the state and the order; `received` adds id and actor to the event that it returns. The first event of
    type `done` or `failed` in the order's own chain ends it; the accepting event may be one of `done`. Events of
    `done_by_any` or `overtaken_by` end it from any chain. `told` makes the text of the answer from the event of `done`.
    """

    rule: Callable[[Any, Any], _Found]
    done: tuple[type[m.Event], ...]
    failed: tuple[type[m.Event], ...] = ()
    done_by_any: tuple[type[m.Event], ...] = ()
    overtaken_by: tuple[type[m.Event], ...] = ()
    told: Callable[[Any], str] = lambda _: ""


_STRENGTH: Final = {m.StopMode.GRACEFUL: 0, m.StopMode.NOW: 1, m.StopMode.KILL: 2}


# -- the path of every order -------------------------------------------------------------------------------------------


def received(orders: Mapping[type[AnyCommand], Order]) -> Callable[[S, m.CommandReceived, At[S]], Decision]:
    """Return the rule that answers a command by the rule of its type.

    A repeated id gets the first answer. A refusal is recorded if the caller gave an id.
    """

    def rule(state: S, given: m.CommandReceived, _: At[S]) -> Decision:
        """Answer an order by the rule of its command. A repeated id gets the first answer."""
        command = given.command
        if (wrong := bounds.refusal(command)) is not None:
            # Not recorded, even with an id: an event may be unable to hold the invalid value.
            return _decision(state, m.Refusal("Refused", wrong))
        known = state.control.outcome(command.id)
        if known is not None:
            return Decision(answer=_repeated(state, known, type(command).__name__))
        actor = replace(given.actor, reason=command.reason or given.actor.reason)
        found = orders[type(command)].rule(state, replace(command, reason=actor.reason))
        decision = _decision(state, found, command.id, actor)
        if isinstance(found, m.Refusal) and command.id:
            event = m.CommandRefused.of(found, command=type(command).__name__, id=command.id, actor=actor)
            return Decision((event,)) + decision
        return decision

    return rule


def _decision(state: Reads, found: _Found, id_: str = "", actor: m.Actor | None = None) -> Decision:
    """Return what the rule of an order found as a decision."""
    match found:
        case Decision():
            return found
        case m.Refusal():
            return Decision(answer=replace(found, phase=state.run.phase.value))
        case _:
            return Decision((replace(found, id=id_, actor=actor),), (), Accepted())


def _repeated(state: Reads, known: st.Outcome, command: str) -> Answer:
    if known.command not in ("", command):
        # Not recorded: the id keeps the answer to the order that had it first.
        why = f"the id {known.id!r} was given to another order, {known.command} (event {known.seq}); an id names one"
        return m.Refusal("Refused", why, state.run.phase.value)
    if known.error:
        return m.Refusal(known.error, known.why, state.run.phase.value)
    return Accepted(known.seq)


def _wrong_phase(state: Reads, needed: str) -> m.Refusal:
    return m.Refusal("WrongPhase", f"the run is {state.run.phase.value}; this needs a run that is {needed}")


# -- pause and resume --------------------------------------------------------------------------------------------------


def pause(state: Reads, _: m.Pause) -> m.PauseRequested | m.Refusal:
    """Accept a pause, or refuse it."""
    # If the run pauses because space is low, this order makes it last after there is space again.
    if not q.is_pausing(state):
        if state.run.phase not in st.TRAINING:
            return _wrong_phase(state, "starting, recovering or running")
        if state.run.pause is not None:
            why = "a pause is ordered already; it takes effect at the next step boundary"
            return m.Refusal("WrongPhase", why)
    return m.PauseRequested()


def paused(state: Reads, _: m.PauseRequested, at: At[Reads]) -> Decision | None:
    """Pause the trainer. If nothing trains, the pause is reached at once."""
    if q.is_pausing(at.was):
        return Decision((q.pause_reached(state),)) if state.run.phase is st.Phase.PAUSED else None
    return Decision((), (m.Hold(),)) if state.trainer.alive else Decision((q.pause_reached(state),))


def resume(state: Reads, command: m.Resume) -> m.ResumeRequested | m.Refusal:
    """Accept a resume, or refuse it."""
    phase = state.run.phase
    stands = phase in (st.Phase.PAUSED, st.Phase.FROZEN, st.Phase.STOPPED)
    if phase in (st.Phase.STOPPING, st.Phase.COMPLETED) or (not stands and state.run.pause is None):
        return _wrong_phase(state, "paused, frozen or stopped")
    gap = state.run.gap
    if gap is not None and not command.after_gap:
        lost = st.gap_words(gap.first_seq, gap.last_seq)
        return m.Refusal("Frozen", f"{lost}; `tolaria resume --after-gap` goes on from event {gap.cause.seq - 1}")
    if state.disk.low is not None:
        return m.Refusal("Refused", f"{state.disk.words}; the run goes on by itself when there is space")
    if gap is None and command.after_gap:
        return m.Refusal("Refused", "no events are missing; resume without --after-gap")
    if phase is st.Phase.FROZEN and state.trainer.alive:
        return m.Refusal("Frozen", f"{state.run.why}; end process {state.trainer.pid} first")
    return m.ResumeRequested(after_gap=command.after_gap)


def resumed(_: Reads, __: m.ResumeRequested, ___: At[Reads]) -> Decision:
    """Continue the run."""
    return Decision((m.RunResumed(origin=m.Origin.COMMAND),))


# -- checkpoint and note -----------------------------------------------------------------------------------------------


def checkpoint(state: Reads, _: m.Checkpoint) -> m.CheckpointRequested | m.Refusal:
    """Accept an order for a checkpoint, or refuse it."""
    if state.run.phase not in (st.Phase.RECOVERING, st.Phase.RUNNING, st.Phase.PAUSED) or not state.trainer.began:
        return _wrong_phase(state, "running")
    if not state.trainer.alive:
        return m.Refusal("WrongPhase", "no trainer is alive at the moment to take one; the newest checkpoint remains")
    if state.disk.low is not None:
        return m.Refusal("Refused", f"{state.disk.words}; no checkpoint is begun")
    if len(state.checkpoints.open) >= st.OPEN_MAX:
        return m.Refusal("Refused", f"{st.OPEN_MAX} checkpoints are being written already")
    return m.CheckpointRequested()


def note(_: Reads, command: m.Note) -> m.NoteAdded | m.Refusal:
    """Accept a note, or refuse it."""
    if not command.text.strip():
        return m.Refusal("Refused", "the note is empty; write at least one character that is not a space")
    return m.NoteAdded(text=command.text)


# -- stop --------------------------------------------------------------------------------------------------------------


def stop(state: Reads, command: m.Stop) -> _Found:
    """Accept a stop, or one by a stronger mode than the stop under way; or refuse it."""
    return _stop(state, command.mode, m.Origin.COMMAND)


def signalled(state: Reads, given: m.SignalReceived, _: At[Reads]) -> Decision:
    """Stop by a signal: the first at the next boundary with a checkpoint, the second at once."""
    mode = m.StopMode.GRACEFUL if given.count == 1 else m.StopMode.KILL
    found = _stop(state, mode, m.Origin.SIGNAL, given.name)
    return _decision(state, found, actor=m.Actor(program="signal", reason=given.name))


def _stop(state: Reads, mode: m.StopMode, origin: m.Origin, signal: str = "") -> _Found:
    phase = state.run.phase
    if phase in st.TERMINAL:
        # Nothing is left to stop except the daemon that answers.
        exit_ = m.ExitDaemon(code=_code_of_end(state, signal), why=f"the run is {phase.value}")
        return Decision((), (exit_,), Accepted(state.seq))
    if phase is st.Phase.FROZEN and origin is m.Origin.SIGNAL:
        return _leave_frozen(state, signal)
    order = state.run.stop
    if order is not None and _STRENGTH[mode] <= _STRENGTH[order.mode]:
        return _wrong_phase(state, "not stopping already")
    if order is not None and origin is m.Origin.SIGNAL:
        # Keep what ordered the stop first: a signal only hastens it. So an operator's stop is completed by a start.
        origin, signal = order.origin, order.signal
    return m.StopRequested(mode=mode, origin=origin, signal=signal)


def _code_of_end(state: Reads, signal: str) -> int:
    """Return the exit code of a daemon that is ended after its run has ended. `signal`: "" if an order ends it."""
    match state.run.phase:
        case st.Phase.FAILED:
            return state.run.failure_code
        case st.Phase.STOPPED if signal:
            return of_signal(signal)
        case _:
            return 0


def _leave_frozen(state: Reads, signal: str) -> Decision:
    """End the daemon, but leave the run frozen: a reboot must not resume what only an operator may (decision 0004)."""
    why = f"the run is frozen ({state.run.why}) until an operator continues it"
    exit_ = m.ExitDaemon(code=of_signal(signal), why=why)
    living = state.trainer
    if not living.alive:
        return Decision((), (exit_,), Accepted(state.seq))
    kill = m.KillTrainer(incarnation=living.incarnation, why="the daemon was ordered to end")
    return Decision((), (kill, exit_), Accepted(state.seq))


def stopping(state: Reads, event: m.StopRequested, at: At[Reads]) -> Decision | None:
    """End a living trainer. One that is already at a boundary takes its last checkpoint first."""
    living, mode = state.trainer, event.mode
    if not living.alive:
        return None
    if q.stops_at_boundary(at.was, mode):
        return None if living.held else Decision((), (m.Hold(),))
    if mode is m.StopMode.NOW and living.began and at.was.run.phase is not st.Phase.FROZEN:
        return Decision((), (m.ExitTrainer(),))
    return Decision((), (m.KillTrainer(incarnation=living.incarnation, why="a stop was ordered"),))
