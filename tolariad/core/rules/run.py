"""The rules for the run as a whole: how an opened run goes on, how a stop, a failure and a pause end, low space."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_FAILED
from tolariad.core.decision import Accepted, Decision
from tolariad.core.engine import At, Numbered


class Reads(Numbered, st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasTrainer, st.HasInsurance, Protocol):
    """The slices that the rules of the run read."""


# -- starting ----------------------------------------------------------------------------------------------------------


def opened(_: Reads, given: m.Opened, __: At[Reads]) -> Decision:
    """Record the facts of this start."""
    return Decision(given.facts)


def reconfigured(_: Reads, given: m.Reconfigured, __: At[Reads]) -> Decision:
    """Record the configuration that holds from now on."""
    return Decision((given.change,), (), Accepted())


def go_on(state: Reads, given: m.Opened, _: At[Reads]) -> Decision | None:
    """Continue an opened run according to the phase that it was in (interface section 6)."""
    mode = given.mode
    if state.run.gap is not None and state.run.phase is not st.Phase.COMPLETED:
        return None  # the daemon answers, and waits for `resume --after-gap`
    match state.run.phase:
        case st.Phase.STARTING | st.Phase.RECOVERING | st.Phase.RUNNING | st.Phase.ROLLING_BACK:
            return _reach_pause(state)
        case st.Phase.STOPPING:
            return _end_or_forget_stop(state)
        case st.Phase.STOPPED if mode is not m.StartMode.ACTIVATED:
            return _reach_pause(state) or Decision((m.RunResumed(origin=m.Origin.START),))
        case st.Phase.COMPLETED if mode is not m.StartMode.ACTIVATED and not q.is_end_reached(state):
            return Decision((m.RunResumed(origin=m.Origin.START),))
        case st.Phase.COMPLETED if mode is not m.StartMode.ACTIVATED:
            return Decision((), (m.ExitDaemon(code=0, why=_complete(state)),))
        case st.Phase.FAILED if mode is m.StartMode.RETRY or _is_answered(state):
            return Decision((m.RunRetried(),))
        case st.Phase.FAILED if mode is m.StartMode.EXPLICIT:
            why = f"the run has failed: {state.run.why}; {q.way_on(state.run.failure, in_program=False)}"
            return Decision((), (m.ExitDaemon(code=EXIT_FAILED, why=why),))
        case _:
            return None


def _is_answered(state: Reads) -> bool:
    """Return whether the run failed because of its data or its code, and this start accepts them."""
    data = state.run.failure is m.FailureKind.DATA and state.trainer.accepts_data
    return data or (state.run.failure is m.FailureKind.CODE and state.trainer.accepts_code)


def _complete(state: Reads) -> str:
    end = state.limits.end
    if end is None:
        return "the run is complete"
    configured = f"it continues with another number of epochs than the configured {state.run.policy.epochs}"
    return f"the run is complete, at the end that was ordered (event {end.cause.seq}); {configured}"


def _reach_pause(state: Reads) -> Decision | None:
    """Return the pause that was ordered and not reached: it is reached now, since nothing trains."""
    pause = state.run.pause
    return None if pause is None else Decision((q.pause_reached(state, pause),))


def _end_or_forget_stop(state: Reads) -> Decision:
    order = state.run.stop
    if order is not None and order.origin is m.Origin.COMMAND:
        return _stopped(state, state)
    forgotten = Decision((m.StopAborted(why="the daemon ended before the stop was done"),))
    return forgotten + (_reach_pause(state) or Decision())


def start_trainer(state: Reads, _: m.Opened, __: At[Reads]) -> Decision | None:
    """Start a trainer if the opened run goes on."""
    is_paused = state.run.pause is not None or state.run.gap is not None
    return None if is_paused or state.run.phase not in st.TRAINING else Decision((), (q.spawn_trainer(state),))


# -- pausing and going on ----------------------------------------------------------------------------------------------


def paused(state: Reads, report: m.HeldReport, _: At[Reads]) -> Decision | None:
    """Record the pause: the trainer is at the boundary that it waits for."""
    pause = state.run.pause
    if pause is None or state.run.phase not in st.TRAINING:
        return None
    return Decision((q.pause_reached(state, pause, report.step),))


def hold(state: Reads, _: m.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """Stop the trainer before its first step if a pause came while it was built."""
    is_paused = state.run.pause is not None and state.run.phase is not st.Phase.STOPPING
    return Decision((), (m.Hold(),)) if is_paused else None


def resumed(state: Reads, event: m.RunResumed, at: At[Reads]) -> Decision | None:
    """Continue the trainer; if none lives, start the next one."""
    if state.trainer.alive:
        return Decision((), (m.Release(),))
    is_under_way = event.origin is m.Origin.DISK and at.was.run.phase is not st.Phase.PAUSED
    if is_under_way or event.origin is m.Origin.START:
        return None  # the next trainer is already on its way, or the start of the daemon starts it
    return Decision((), (q.spawn_trainer(state),))


# -- ending ------------------------------------------------------------------------------------------------------------


def failed(state: Reads, event: m.RunFailed, _: At[Reads]) -> Decision:
    """End the trainer first, and the daemon after it."""
    if state.trainer.alive:
        return Decision((), (m.KillTrainer(incarnation=state.trainer.incarnation, why=event.why),))
    return Decision((), (m.ExitDaemon(code=st.EXIT_CODES[event.kind], why=event.why),))


def stop_without_trainer(state: Reads, _: m.StopRequested, at: At[Reads]) -> Decision | None:
    """Complete a stop that was ordered while no trainer lives."""
    return None if state.trainer.alive else _stopped(state, at.was)


def trainer_is_gone(state: Reads, what: m.TrainerDied | m.TrainerEnded, at: At[Reads]) -> Decision | None:
    """End the daemon of a run that stops, is complete or has failed: its trainer is gone."""
    if isinstance(what, m.TrainerDied):
        # If a start finds an open stop, `go_on` decides about it.
        is_daemons = what.reason is m.DeathReason.WITH_DAEMON
        return _stopped(state, at.was) if state.run.phase is st.Phase.STOPPING and not is_daemons else None
    match state.run.phase:
        case st.Phase.STOPPING:
            return _stopped(state, at.was)
        case st.Phase.COMPLETED:
            kept = q.kept_in_words(state)
            why = f"the run is complete; {kept}" if kept else "the run is complete"
            return Decision((), (m.ExitDaemon(code=0, why=why),))
        case st.Phase.FAILED:
            return Decision((), (m.ExitDaemon(code=state.run.failure_code, why=state.run.why),))
        case _:
            return None


def _stopped(state: Reads, was: Reads) -> Decision:
    """Complete the stop, even without its last checkpoint: a start runs again what is not saved."""
    order, newest = state.run.stop, state.checkpoints.newest
    mode = order.mode if order else m.StopMode.GRACEFUL
    why = _unsaved(state, was, mode)
    event = m.RunStopped(
        step=state.progress.step,
        mode=mode,
        checkpoint=newest.id if newest else "",
        why=why,
    )
    said = f"the run is stopped; {why}" if why else "the run is stopped"
    exit_ = m.ExitDaemon(code=order.exit_code if order else 0, why=said)
    return Decision((event.caused_by(order.cause if order else None),), (exit_,))


def _unsaved(state: Reads, was: Reads, mode: m.StopMode) -> str:
    """Return why a stop has no checkpoint of its last step, and where a start continues; "" if all is saved.

    `was`: the state before the trainer was gone, which ended every open checkpoint.
    """
    held, newest = state.checkpoints, state.checkpoints.newest
    saved = newest.step if newest else 0
    if saved >= state.progress.step:
        return ""
    if any(one.reason is m.CheckpointReason.STOP for one in was.checkpoints.open):
        why = "the last checkpoint was not done when the trainer ended"
    elif was.checkpoints.given_up:
        why = f"the last checkpoint begun was given up: {was.checkpoints.given_up}"
    elif state.disk.low is not None and mode is m.StopMode.GRACEFUL:
        why = f"no last checkpoint was begun: {state.disk.words}"
    else:
        return ""
    lost = st.none_left(held.catalogue, held.removed)
    return f"{why}; none can be used ({lost})" if lost else f"{why}; a start continues from step {saved + 1}"


# -- space on the journal's disk ---------------------------------------------------------------------------------------


def disk_measured(state: Reads, given: m.DiskMeasured, _: At[Reads]) -> Decision | None:
    """Record a measurement that crosses the limit."""
    if not q.disk_would_change(state, given):
        return None
    low = state.disk.low
    return Decision((m.DiskLow.of(given) if low is None else m.DiskRecovered.of(given).caused_by(low),))


def disk_measured_at_start(state: Reads, given: m.Opened, at: At[Reads]) -> Decision | None:
    """Pause a run that would begin training on a low disk before it has a trainer, even if the disk was low before."""
    if given.disk is None:
        return None
    is_low = given.disk.free < given.disk.floor
    if is_low and state.run.phase in st.TRAINING and state.run.pause is None:
        # One block, so that no trainer is started between the two events.
        return Decision((m.DiskLow.of(given.disk), q.pause_reached(state, m.Cause(state.seq + 1, 0))))
    return disk_measured(state, given.disk, at)


def pause_for_disk(state: Reads, _: m.DiskLow, at: At[Reads]) -> Decision | None:
    """Pause at the next boundary, unless a pause is ordered already."""
    if at.was.run.pause is not None or state.run.phase not in st.TRAINING:
        return None
    return Decision((), (m.Hold(),)) if state.trainer.alive else Decision((q.pause_reached(state),))


def go_on_after_disk(_: Reads, __: m.DiskRecovered, at: At[Reads]) -> Decision | None:
    """Continue if low space was the only reason for the pause."""
    if not q.is_pausing(at.was) or at.was.run.phase not in (*st.TRAINING, st.Phase.PAUSED):
        return None
    return Decision((m.RunResumed(origin=m.Origin.DISK),))
