"""The run's identity and phase: slice, transitions as a table, and how an opened run goes on.

Invariants: the phase changes only by TRANSITIONS; a pair that is not in it leaves the phase as it is, since `apply` never
refuses. A pause outlives the daemon: it is withdrawn only by `resume`, or by a stop that a command ordered.
It must not know: steps or files.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core.catalogue import none_left
from tolariad.core.decision import NOTHING, Decision
from tolariad.core.inputs import StartMode
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control, disk, run, trainer
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary.base import ApplyTable, Cause, Event

if TYPE_CHECKING:
    from tolariad.core.state import RunState


class Phase(enum.Enum):
    """Interface section 6. `rolling_back` is entered by rollbacks."""

    STARTING = "starting"
    RECOVERING = "recovering"
    RUNNING = "running"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    FROZEN = "frozen"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"


TRAINING: Final = frozenset({Phase.STARTING, Phase.RECOVERING, Phase.RUNNING, Phase.ROLLING_BACK})
TERMINAL: Final = frozenset({Phase.STOPPED, Phase.COMPLETED, Phase.FAILED})
EXIT_FAILED: Final = 70
EXIT_CODES: Final = {
    run.FailureKind.CONFIGURATION: 78,
    run.FailureKind.CHECKPOINT: 65,
    run.FailureKind.STORAGE: 74,
    run.FailureKind.TRAINER: EXIT_FAILED,
    run.FailureKind.DIVERGED: EXIT_FAILED,
}


class Stop(msgspec.Struct, frozen=True):
    """A stop that was ordered and is not done."""

    mode: run.StopMode
    origin: run.Origin
    cause: Cause


class Gap(msgspec.Struct, frozen=True):
    """Acknowledged events that a repair gave up, until somebody says that the run shall go on without them."""

    first_seq: int
    last_seq: int
    cause: Cause


class Run(msgspec.Struct, frozen=True):
    """Slice of RunState: who this run is and where it stands."""

    run_id: str = ""
    name: str = ""
    task: str = ""
    rng_seed: int = 0
    config: str = ""
    config_hash: str = ""
    policy: run.Policy = run.Policy(epochs=1)
    started_wall: int = 0
    phase: Phase = Phase.STARTING
    pause: Cause | None = None
    stop: Stop | None = None
    why: str = ""
    failure: run.FailureKind | None = None
    daemon_pid: int = 0
    boot_id: str = ""
    starts: int = 0
    gap: Gap | None = None
    parent: run.Parent | None = None


_RUNNING_ON: Final = (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)


def _from(phases: tuple[Phase, ...], to: Phase) -> dict[Phase, Phase]:
    return dict.fromkeys(phases, to)


_ANY: Final = tuple(Phase)
_NOT_ENDED: Final = tuple(phase for phase in Phase if phase not in TERMINAL)

# event -> phase before -> phase after; what is absent changes nothing.
TRANSITIONS: Final[dict[type[Event], dict[Phase, Phase]]] = {
    run.RunStarted: _from(_ANY, Phase.STARTING),
    trainer.TrainerStarted: {Phase.RUNNING: Phase.RECOVERING},
    trainer.TrainerDied: {Phase.RUNNING: Phase.RECOVERING},
    trainer.TrainerEnded: {Phase.RUNNING: Phase.RECOVERING},
    ck.TrainingStarted: {Phase.STARTING: Phase.RUNNING, Phase.RECOVERING: Phase.RUNNING},
    rb.RollbackBegun: _from((*_RUNNING_ON, Phase.PAUSED, Phase.FROZEN), Phase.ROLLING_BACK),
    rb.RollbackAborted: {Phase.ROLLING_BACK: Phase.RUNNING},
    rb.RolledBack: {Phase.ROLLING_BACK: Phase.RECOVERING},
    ck.RerunBegun: {Phase.STARTING: Phase.RECOVERING, Phase.RUNNING: Phase.RECOVERING},
    ck.RerunFinished: {Phase.RECOVERING: Phase.RUNNING},
    run.RunPaused: _from((*_RUNNING_ON, Phase.ROLLING_BACK, Phase.STOPPED), Phase.PAUSED),
    run.RunResumed: {
        Phase.PAUSED: Phase.RUNNING,
        Phase.FROZEN: Phase.RECOVERING,
        Phase.STOPPED: Phase.RECOVERING,
    },
    control.StopRequested: _from(_NOT_ENDED, Phase.STOPPING),
    run.StopAborted: {Phase.STOPPING: Phase.RECOVERING},
    run.RunStopped: _from(_NOT_ENDED, Phase.STOPPED),
    run.RunCompleted: _from(_NOT_ENDED, Phase.COMPLETED),
    run.RunFailed: _from(_ANY, Phase.FAILED),
    run.RunRetried: {Phase.FAILED: Phase.RECOVERING},
    run.RunFrozen: _from(_NOT_ENDED, Phase.FROZEN),
    # A run that is complete has nothing left that a gap could change.
    run.GapRecorded: _from((*_NOT_ENDED, Phase.STOPPED, Phase.FAILED), Phase.FROZEN),
}


def _started(s: Run, e: run.RunStarted, _: Cause) -> Run:
    return replace(
        s,
        run_id=e.run_id,
        name=e.name,
        task=e.task,
        rng_seed=e.rng_seed,
        config=e.config,
        config_hash=e.config_hash,
        policy=e.policy,
        started_wall=e.wall,
        parent=e.began_from,
    )


def _config_changed(s: Run, e: run.ConfigChanged, _: Cause) -> Run:
    return replace(s, config=e.config, config_hash=e.config_hash, policy=e.policy)


def _daemon_started(s: Run, e: run.DaemonStarted, _: Cause) -> Run:
    return replace(s, daemon_pid=e.pid, boot_id=e.boot_id, starts=s.starts + 1)


def _pause_requested(s: Run, _: control.PauseRequested, at: Cause) -> Run:
    return replace(s, pause=at)


def _pause_withdrawn(s: Run, _: Event, __: Cause) -> Run:
    return replace(s, pause=None, why="", gap=None)


def _disk_low(s: Run, _: disk.DiskLow, at: Cause) -> Run:
    # A pause that somebody ordered stays theirs.
    return replace(s, pause=s.pause or at)


def _disk_recovered(s: Run, e: disk.DiskRecovered, _: Cause) -> Run:
    is_over = s.pause is not None and s.pause.seq == e.cause
    return replace(s, pause=None) if is_over else s


def _stop_requested(s: Run, e: control.StopRequested, at: Cause) -> Run:
    pause = None if e.origin is run.Origin.COMMAND else s.pause
    return replace(s, stop=Stop(e.mode, e.origin, at), pause=pause)


def _stop_over(s: Run, _: Event, __: Cause) -> Run:
    return replace(s, stop=None)


def _failed(s: Run, e: run.RunFailed, _: Cause) -> Run:
    return replace(s, why=e.why, failure=e.kind, stop=None)


def _frozen(s: Run, e: run.RunFrozen, _: Cause) -> Run:
    return replace(s, why=e.why)


def _gap_recorded(s: Run, e: run.GapRecorded, at: Cause) -> Run:
    return replace(s, gap=Gap(e.first_seq, e.last_seq, at), why=gap_words(e.first_seq, e.last_seq))


def gap_words(first_seq: int, last_seq: int) -> str:
    """What is missing, as a clause."""
    lost = f"events {first_seq} to {last_seq}" if last_seq else f"the events from {first_seq} on"
    return f"{lost} were lost: a repair cut damage out of the journal"


def _retried(s: Run, _: run.RunRetried, __: Cause) -> Run:
    return replace(s, why="", failure=None)


APPLY: Final[ApplyTable] = {
    run.RunStarted: _started,
    run.ConfigChanged: _config_changed,
    run.DaemonStarted: _daemon_started,
    control.PauseRequested: _pause_requested,
    run.RunResumed: _pause_withdrawn,
    disk.DiskLow: _disk_low,
    disk.DiskRecovered: _disk_recovered,
    control.StopRequested: _stop_requested,
    run.RunStopped: _stop_over,
    run.StopAborted: _stop_over,
    run.RunCompleted: _stop_over,
    run.RunFailed: _failed,
    run.RunFrozen: _frozen,
    run.GapRecorded: _gap_recorded,
    run.RunRetried: _retried,
}


def phase_after(phase: Phase, kind: type[Event]) -> Phase:
    """The phase once an event of this type is recorded; total."""
    row = TRANSITIONS.get(kind)
    # Most events are in no row, and a phase is not hashed for those: this runs in every step.
    return phase if row is None else row.get(phase, phase)


def gate_open(state: RunState) -> bool:
    """May an update begin? Not before the first checkpoint is committed, and never while frozen or ended.

    Where none of those that were can be used any more, training goes on: what lives is all there is, and the next one is ordered.
    """
    return (
        state.run.phase not in (Phase.FROZEN, Phase.ROLLING_BACK)
        and state.run.phase not in TERMINAL
        and bool(state.checkpoints.catalogue or state.checkpoints.removed)
    )


def is_halted(state: RunState) -> bool:
    """Nothing may change the model any more: not even steps that the journal has are run again."""
    return state.run.phase is Phase.FROZEN or state.run.phase in TERMINAL


def spawn(state: RunState, *, delay_s: float = 0.0) -> trainer.SpawnTrainer:
    """The order for the next trainer."""
    return trainer.SpawnTrainer(incarnation=state.trainer.incarnation + 1, delay_s=delay_s)


def stopped(state: RunState, at: Cause | None = None) -> Decision:
    """The stop is done: record it and end the daemon."""
    order = state.run.stop
    mode = order.mode if order else run.StopMode.GRACEFUL
    return stand_still(state, mode, order.cause if order else at)


def stand_still(state: RunState, mode: run.StopMode, at: Cause | None = None) -> Decision:
    """The same for a stop in this mode. It is done without its last checkpoint too: what is not saved is run again.

    `at`: None where the order is in this very decision, and so is the cause.
    """
    newest, cause, why = state.checkpoints.newest, at or Cause(0, 0), _unsaved(state, mode)
    event = run.RunStopped(
        step=state.progress.step,
        mode=mode,
        checkpoint=newest.id if newest else "",
        why=why,
        cause=cause.seq,
        root=cause.root,
    )
    said = f"the run is stopped; {why}" if why else "the run is stopped"
    return Decision((event,), (run.ExitDaemon(code=0, why=said),))


def _unsaved(state: RunState, mode: run.StopMode) -> str:
    """Why a stop has no checkpoint of its last step, where one was to be, and where a start goes on; "" where all is saved."""
    held, newest = state.checkpoints, state.checkpoints.newest
    saved = newest.step if newest else 0
    if saved >= state.progress.step:
        return ""
    if any(one.reason is ck.CheckpointReason.STOP for one in held.open):
        # Its end is in this very decision.
        why = "the last checkpoint was not done when the trainer ended"
    elif held.given_up:
        why = f"the last checkpoint begun was given up: {held.given_up}"
    elif state.disk.low is not None and mode is run.StopMode.GRACEFUL:
        why = f"no last checkpoint was begun: {state.disk.words}"
    else:
        return ""
    lost = none_left(held.catalogue, held.removed)
    return f"{why}; none can be used ({lost})" if lost else f"{why}; a start goes on from step {saved + 1}"


def failed(state: RunState, kind: run.FailureKind, why: str) -> Decision:
    """The run fails; its trainer is ended first, and the daemon when that one is gone."""
    event = run.RunFailed(kind=kind, why=why)
    if state.trainer.alive:
        return Decision((event,), (trainer.KillTrainer(incarnation=state.trainer.incarnation, why=why),))
    return Decision((event,), (run.ExitDaemon(code=EXIT_CODES[kind], why=why),))


def go_on(state: RunState, mode: StartMode) -> Decision:
    """What an opened run does, by the phase it was found in (interface section 6)."""
    if state.run.gap is not None and state.run.phase is not Phase.COMPLETED:
        return NOTHING  # it answers, and waits for `resume --after-gap`
    match state.run.phase:
        case Phase.STARTING | Phase.RECOVERING | Phase.RUNNING | Phase.ROLLING_BACK:
            return _train_unless_paused(state)
        case Phase.STOPPING:
            return _end_or_forget_stop(state)
        case Phase.STOPPED if mode is not StartMode.ACTIVATED:
            if state.run.pause is not None:
                return _train_unless_paused(state)
            return Decision((run.RunResumed(origin=run.Origin.START),), (spawn(state),))
        case Phase.COMPLETED if mode is not StartMode.ACTIVATED:
            return Decision((), (run.ExitDaemon(code=0, why="the run is complete"),))
        case Phase.FAILED if mode is StartMode.RETRY:
            return Decision((run.RunRetried(),), (spawn(state),))
        case Phase.FAILED if mode is StartMode.EXPLICIT:
            why = f"the run has failed: {state.run.why}; look with `tolaria why`, then start it with --retry"
            return Decision((), (run.ExitDaemon(code=EXIT_FAILED, why=why),))
        case _:
            return NOTHING


def _train_unless_paused(state: RunState) -> Decision:
    """A pause that was ordered and not reached is reached now, since nothing trains."""
    pause = state.run.pause
    if pause is None:
        return Decision((), (spawn(state),))
    return Decision((paused(state, pause),))


def _end_or_forget_stop(state: RunState) -> Decision:
    order = state.run.stop
    if order is not None and order.origin is run.Origin.COMMAND:
        return stopped(state)
    event = run.StopAborted(why="the daemon ended before the stop was done")
    return Decision((event,)) + _train_unless_paused(state)


def paused(state: RunState, pause: Cause, step: int | None = None) -> run.RunPaused:
    """Training stands; `step` is where a re-run stands that is not at its end."""
    at = state.progress.step if step is None else step
    return run.RunPaused(applied_before_step=at + 1, cause=pause.seq, root=pause.root)
