"""The rules for the run as a whole: how an opened run goes on, how a stop, a failure and a pause end, low space."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause
from tolariad.core.checkpoints import words as ck
from tolariad.core.checkpoints.catalogue_slice import none_left
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.control import words as cv
from tolariad.core.decision import Accepted, Decision
from tolariad.core.engine import At, Numbered
from tolariad.core.inputs import DiskMeasured, Opened, Reconfigured, StartMode
from tolariad.core.run import words as rv
from tolariad.core.run.ask import disk_would_change, is_pausing, pause_reached, spawn_trainer
from tolariad.core.run.exits import EXIT_FAILED
from tolariad.core.run.limit_ask import is_end_reached
from tolariad.core.run.slice import EXIT_CODES, TRAINING, HasRun, Phase
from tolariad.core.steps.slice import HasProgress
from tolariad.core.trainer import words as tv
from tolariad.core.trainer.slice import HasTrainer


class Reads(Numbered, HasRun, HasProgress, HasCheckpoints, HasTrainer, Protocol):
    """The slices that the rules of the run read."""


# -- starting ----------------------------------------------------------------------------------------------------------


def opened(_: Reads, given: Opened, __: At[Reads]) -> Decision:
    """Record the facts of this start."""
    return Decision(given.facts)


def reconfigured(_: Reads, given: Reconfigured, __: At[Reads]) -> Decision:
    """Record the configuration that holds from now on."""
    return Decision((given.change,), (), Accepted())


def go_on(state: Reads, given: Opened, _: At[Reads]) -> Decision | None:
    """Continue an opened run according to the phase that it was in (interface section 6)."""
    mode = given.mode
    if state.run.gap is not None and state.run.phase is not Phase.COMPLETED:
        return None  # the daemon answers, and waits for `resume --after-gap`
    match state.run.phase:
        case Phase.STARTING | Phase.RECOVERING | Phase.RUNNING | Phase.ROLLING_BACK:
            return _reach_pause(state)
        case Phase.STOPPING:
            return _end_or_forget_stop(state)
        case Phase.STOPPED if mode is not StartMode.ACTIVATED:
            return _reach_pause(state) or Decision((rv.RunResumed(origin=rv.Origin.START),))
        case Phase.COMPLETED if mode is not StartMode.ACTIVATED and not is_end_reached(state):
            return Decision((rv.RunResumed(origin=rv.Origin.START),))
        case Phase.COMPLETED if mode is not StartMode.ACTIVATED:
            return Decision((), (rv.ExitDaemon(code=0, why=_complete(state)),))
        case Phase.FAILED if mode is StartMode.RETRY or _is_answered(state):
            return Decision((rv.RunRetried(),))
        case Phase.FAILED if mode is StartMode.EXPLICIT:
            why = f"the run has failed: {state.run.why}; look with `tolaria why`, then start it with --retry"
            return Decision((), (rv.ExitDaemon(code=EXIT_FAILED, why=why),))
        case _:
            return None


def _is_answered(state: Reads) -> bool:
    """Return whether the run failed because of its data, and this start accepts them."""
    return state.run.failure is rv.FailureKind.DATA and state.trainer.accepts_data


def _complete(state: Reads) -> str:
    end = state.limits.end
    if end is None:
        return "the run is complete"
    configured = f"it continues with another number of epochs than the configured {state.run.policy.epochs}"
    return f"the run is complete, at the end that was ordered (event {end.cause.seq}); {configured}"


def _reach_pause(state: Reads) -> Decision | None:
    """Return the pause that was ordered and not reached: it is reached now, since nothing trains."""
    pause = state.run.pause
    return None if pause is None else Decision((pause_reached(state, pause),))


def _end_or_forget_stop(state: Reads) -> Decision:
    order = state.run.stop
    if order is not None and order.origin is rv.Origin.COMMAND:
        return _stopped(state, state)
    forgotten = Decision((rv.StopAborted(why="the daemon ended before the stop was done"),))
    return forgotten + (_reach_pause(state) or Decision())


def start_trainer(state: Reads, _: Opened, __: At[Reads]) -> Decision | None:
    """Start a trainer if the opened run goes on."""
    is_paused = state.run.pause is not None or state.run.gap is not None
    return None if is_paused or state.run.phase not in TRAINING else Decision((), (spawn_trainer(state),))


# -- pausing and going on ----------------------------------------------------------------------------------------------


def paused(state: Reads, report: cv.HeldReport, _: At[Reads]) -> Decision | None:
    """Record the pause: the trainer is at the boundary that it waits for."""
    pause = state.run.pause
    if pause is None or state.run.phase not in TRAINING:
        return None
    return Decision((pause_reached(state, pause, report.step),))


def hold(state: Reads, _: tv.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """Stop the trainer before its first step if a pause came while it was built."""
    is_paused = state.run.pause is not None and state.run.phase is not Phase.STOPPING
    return Decision((), (cv.Hold(),)) if is_paused else None


def resumed(state: Reads, event: rv.RunResumed, at: At[Reads]) -> Decision | None:
    """Continue the trainer; if none lives, start the next one."""
    if state.trainer.alive:
        return Decision((), (cv.Release(),))
    is_under_way = event.origin is rv.Origin.DISK and at.was.run.phase is not Phase.PAUSED
    if is_under_way or event.origin is rv.Origin.START:
        return None  # the next trainer is already on its way, or the start of the daemon starts it
    return Decision((), (spawn_trainer(state),))


# -- ending ------------------------------------------------------------------------------------------------------------


def failed(state: Reads, event: rv.RunFailed, _: At[Reads]) -> Decision:
    """End the trainer first, and the daemon after it."""
    if state.trainer.alive:
        return Decision((), (tv.KillTrainer(incarnation=state.trainer.incarnation, why=event.why),))
    return Decision((), (rv.ExitDaemon(code=EXIT_CODES[event.kind], why=event.why),))


def stop_without_trainer(state: Reads, _: cv.StopRequested, at: At[Reads]) -> Decision | None:
    """Complete a stop that was ordered while no trainer lives."""
    return None if state.trainer.alive else _stopped(state, at.was)


def trainer_is_gone(state: Reads, what: tv.TrainerDied | tv.TrainerEnded, at: At[Reads]) -> Decision | None:
    """End the daemon of a run that stops, is complete or has failed: its trainer is gone."""
    if isinstance(what, tv.TrainerDied):
        # If a start finds an open stop, `go_on` decides about it.
        is_daemons = what.reason is tv.DeathReason.WITH_DAEMON
        return _stopped(state, at.was) if state.run.phase is Phase.STOPPING and not is_daemons else None
    match state.run.phase:
        case Phase.STOPPING:
            return _stopped(state, at.was)
        case Phase.COMPLETED:
            return Decision((), (rv.ExitDaemon(code=0, why="the run is complete"),))
        case Phase.FAILED:
            return Decision((), (rv.ExitDaemon(code=state.run.failure_code, why=state.run.why),))
        case _:
            return None


def _stopped(state: Reads, was: Reads) -> Decision:
    """Complete the stop, even without its last checkpoint: a start runs again what is not saved."""
    order, newest = state.run.stop, state.checkpoints.newest
    mode = order.mode if order else rv.StopMode.GRACEFUL
    why = _unsaved(state, was, mode)
    event = rv.RunStopped(
        step=state.progress.step,
        mode=mode,
        checkpoint=newest.id if newest else "",
        why=why,
    )
    said = f"the run is stopped; {why}" if why else "the run is stopped"
    exit_ = rv.ExitDaemon(code=order.exit_code if order else 0, why=said)
    return Decision((event.caused_by(order.cause if order else None),), (exit_,))


def _unsaved(state: Reads, was: Reads, mode: rv.StopMode) -> str:
    """Return why a stop has no checkpoint of its last step, and where a start continues; "" if all is saved.

    `was`: the state before the trainer was gone, which ended every open checkpoint.
    """
    held, newest = state.checkpoints, state.checkpoints.newest
    saved = newest.step if newest else 0
    if saved >= state.progress.step:
        return ""
    if any(one.reason is ck.CheckpointReason.STOP for one in was.checkpoints.open):
        why = "the last checkpoint was not done when the trainer ended"
    elif was.checkpoints.given_up:
        why = f"the last checkpoint begun was given up: {was.checkpoints.given_up}"
    elif state.disk.low is not None and mode is rv.StopMode.GRACEFUL:
        why = f"no last checkpoint was begun: {state.disk.words}"
    else:
        return ""
    lost = none_left(held.catalogue, held.removed)
    return f"{why}; none can be used ({lost})" if lost else f"{why}; a start continues from step {saved + 1}"


# -- space on the journal's disk ---------------------------------------------------------------------------------------


def disk_measured(state: Reads, given: DiskMeasured, _: At[Reads]) -> Decision | None:
    """Record a measurement that crosses the limit."""
    if not disk_would_change(state, given):
        return None
    low = state.disk.low
    return Decision((rv.DiskLow.of(given) if low is None else rv.DiskRecovered.of(given).caused_by(low),))


def disk_measured_at_start(state: Reads, given: Opened, at: At[Reads]) -> Decision | None:
    """Pause a run that would begin training on a low disk before it has a trainer, even if the disk was low before."""
    if given.disk is None:
        return None
    is_low = given.disk.free < given.disk.floor
    if is_low and state.run.phase in TRAINING and state.run.pause is None:
        # One block, so that no trainer is started between the two events.
        return Decision((rv.DiskLow.of(given.disk), pause_reached(state, Cause(state.seq + 1, 0))))
    return disk_measured(state, given.disk, at)


def pause_for_disk(state: Reads, _: rv.DiskLow, at: At[Reads]) -> Decision | None:
    """Pause at the next boundary, unless a pause is ordered already."""
    if at.was.run.pause is not None or state.run.phase not in TRAINING:
        return None
    return Decision((), (cv.Hold(),)) if state.trainer.alive else Decision((pause_reached(state),))


def go_on_after_disk(_: Reads, __: rv.DiskRecovered, at: At[Reads]) -> Decision | None:
    """Continue if low space was the only reason for the pause."""
    if not is_pausing(at.was) or at.was.run.phase not in (*TRAINING, Phase.PAUSED):
        return None
    return Decision((rv.RunResumed(origin=rv.Origin.DISK),))
