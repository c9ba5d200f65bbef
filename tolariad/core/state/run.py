"""The run's identity and phase, and space on the journal's disk: slices, and transitions as a table.

Invariants: the phase changes only by TRANSITIONS. A pair that is not in it leaves the phase as it is, since `apply`
never refuses. A pause outlives the daemon: only `resume` ends it, or a stop that a command ordered.

The run pauses while there is still space for everything that an orderly end needs. The floor is three segments and a
checkpoint, so the last spare segment stays unused. A run that paused for low space goes on by itself, unless somebody
ordered a pause meanwhile. Below the floor no checkpoint is begun and no telemetry is recorded.
"""

import enum
from typing import Annotated, ClassVar, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_FAILED, EXIT_IO, of_signal
from tolariad.core.state.fates import set_back
from tolariad.core.state.fold import ApplyTable, setting
from tolariad.core.state.run_limit import RunLimits


class Phase(enum.Enum):
    """The phases of interface section 6. Rollbacks enter `rolling_back`."""

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
EXIT_CODES: Final = {
    m.FailureKind.CONFIGURATION: EXIT_CONFIG,
    m.FailureKind.DATA: EXIT_CONFIG,
    m.FailureKind.CHECKPOINT: EXIT_DAMAGED,
    m.FailureKind.STORAGE: EXIT_IO,
    m.FailureKind.TRAINER: EXIT_FAILED,
    m.FailureKind.DIVERGED: EXIT_FAILED,
    m.FailureKind.CODE: EXIT_FAILED,
}


class PendingStop(msgspec.Struct, frozen=True):
    """A stop that was ordered and is not complete. `signal`: see StopRequested."""

    mode: m.StopMode
    origin: m.Origin
    cause: m.Cause
    signal: str = ""

    @property
    def exit_code(self) -> int:
        """The daemon's exit code after this stop."""
        return of_signal(self.signal) if self.origin is m.Origin.SIGNAL else 0


class Gap(msgspec.Struct, frozen=True):
    """The acknowledged events that a repair gave up. The run waits for an operator's order to go on without them."""

    first_seq: int
    last_seq: int
    cause: m.Cause


class Run(msgspec.Struct, frozen=True):
    """Slice of RunState: which run this is and its phase. `changed`: the keys that this start of the daemon changed."""

    SURVIVES: ClassVar[str] = "which run this is and how it is configured; orders of operators; the daemon's process"

    run_id: str = ""
    name: str = ""
    task: str = ""
    rng_seed: int = 0
    config: str = ""
    policy: m.Policy = m.Policy(epochs=1)
    started_wall: int = 0
    phase: Annotated[Phase, set_back("the rollback is complete: the run recovers")] = Phase.STARTING
    pause: m.Cause | None = None
    stop: PendingStop | None = None
    why: str = ""
    failure: m.FailureKind | None = None
    boot_id: str = ""
    starts: int = 0
    gap: Gap | None = None
    parent: m.Parent | None = None
    changed: tuple[str, ...] = ()

    @property
    def is_halted(self) -> bool:
        """Return whether nothing may change the model. Then even steps already in the journal may not be re-run."""
        return self.phase is Phase.FROZEN or self.phase in TERMINAL

    @property
    def failure_code(self) -> int:
        """The daemon's exit code for a failed run."""
        return EXIT_CODES[self.failure] if self.failure else EXIT_FAILED


class Disk(msgspec.Struct, frozen=True):
    """Slice of RunState. `low`: the event since which space is low, or None. `free`, `floor`: the last bytes seen."""

    SURVIVES: ClassVar[str] = "it describes the disk"

    low: m.Cause | None = None
    free: int = 0
    floor: int = 0

    @property
    def words(self) -> str:
        """Return the problem as a clause."""
        return f"the journal's disk is low: {self.free:,} bytes were free, {self.floor:,} are needed"


class HasRun(Protocol):
    """A state with the slices of the run."""

    @property
    def run(self) -> Run:
        """Return which run this is and its phase."""

    @property
    def disk(self) -> Disk:
        """Return the state of the journal's disk."""

    @property
    def limits(self) -> RunLimits:
        """Return the limits and the best epoch."""


_RUNNING_ON: Final = (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)


def _from(phases: tuple[Phase, ...], to: Phase) -> dict[Phase, Phase]:
    return dict.fromkeys(phases, to)


_ANY: Final = tuple(Phase)
_NOT_ENDED: Final = tuple(phase for phase in Phase if phase not in TERMINAL)

# event -> phase before -> phase after. A pair that is absent changes nothing.
TRANSITIONS: Final[dict[type[m.Event], dict[Phase, Phase]]] = {
    m.RunStarted: _from(_ANY, Phase.STARTING),
    m.TrainerStarted: {Phase.RUNNING: Phase.RECOVERING},
    m.TrainerDied: {Phase.RUNNING: Phase.RECOVERING},
    m.TrainerEnded: {Phase.RUNNING: Phase.RECOVERING},
    m.TrainingStarted: {Phase.STARTING: Phase.RUNNING, Phase.RECOVERING: Phase.RUNNING},
    m.RollbackBegun: _from((*_RUNNING_ON, Phase.PAUSED, Phase.FROZEN), Phase.ROLLING_BACK),
    m.RollbackAborted: {Phase.ROLLING_BACK: Phase.RUNNING},
    m.RolledBack: {Phase.ROLLING_BACK: Phase.RECOVERING},
    m.RerunBegun: {Phase.STARTING: Phase.RECOVERING, Phase.RUNNING: Phase.RECOVERING},
    m.RerunFinished: {Phase.RECOVERING: Phase.RUNNING},
    m.RunPaused: _from((*_RUNNING_ON, Phase.ROLLING_BACK, Phase.STOPPED), Phase.PAUSED),
    m.RunResumed: {
        Phase.PAUSED: Phase.RUNNING,
        Phase.FROZEN: Phase.RECOVERING,
        Phase.STOPPED: Phase.RECOVERING,
        # With a later end than the one it came to.
        Phase.COMPLETED: Phase.RECOVERING,
    },
    m.StopRequested: _from(_NOT_ENDED, Phase.STOPPING),
    m.StopAborted: {Phase.STOPPING: Phase.RECOVERING},
    m.RunStopped: _from(_NOT_ENDED, Phase.STOPPED),
    m.RunCompleted: _from(_NOT_ENDED, Phase.COMPLETED),
    m.RunFailed: _from(_ANY, Phase.FAILED),
    m.RunRetried: {Phase.FAILED: Phase.RECOVERING},
    m.RunFrozen: _from(_NOT_ENDED, Phase.FROZEN),
    # A complete run has nothing left that a gap could affect.
    m.GapRecorded: _from((*_NOT_ENDED, Phase.STOPPED, Phase.FAILED), Phase.FROZEN),
}


def _started(s: Run, e: m.RunStarted, _: m.Cause) -> Run:
    return replace(
        s,
        run_id=e.run_id,
        name=e.name,
        task=e.task,
        rng_seed=e.rng_seed,
        config=e.config,
        policy=e.policy,
        started_wall=e.wall,
        parent=e.began_from,
    )


def _config_changed(s: Run, e: m.ConfigChanged, _: m.Cause) -> Run:
    return replace(s, config=e.config, policy=e.policy, changed=e.keys)


def _daemon_started(s: Run, e: m.DaemonStarted, _: m.Cause) -> Run:
    return replace(s, boot_id=e.boot_id, starts=s.starts + 1, changed=())


def _pause_requested(s: Run, _: m.PauseRequested, at: m.Cause) -> Run:
    return replace(s, pause=at)


def _disk_low(s: Run, _: m.DiskLow, at: m.Cause) -> Run:
    # Keep a pause that somebody ordered: space alone must not end it.
    return replace(s, pause=s.pause or at)


def _disk_recovered(s: Run, e: m.DiskRecovered, _: m.Cause) -> Run:
    is_over = s.pause is not None and s.pause.seq == e.cause
    return replace(s, pause=None) if is_over else s


def _stop_requested(s: Run, e: m.StopRequested, at: m.Cause) -> Run:
    pause = None if e.origin is m.Origin.COMMAND else s.pause
    return replace(s, stop=PendingStop(e.mode, e.origin, at, e.signal), pause=pause)


def _failed(s: Run, e: m.RunFailed, _: m.Cause) -> Run:
    return replace(s, why=e.why, failure=e.kind, stop=None)


def _frozen(s: Run, e: m.RunFrozen, _: m.Cause) -> Run:
    return replace(s, why=e.why)


def _gap_recorded(s: Run, e: m.GapRecorded, at: m.Cause) -> Run:
    return replace(s, gap=Gap(e.first_seq, e.last_seq, at), why=gap_words(e.first_seq, e.last_seq))


def gap_words(first_seq: int, last_seq: int) -> str:
    """Return what is missing, as a clause."""
    lost = f"events {first_seq} to {last_seq}" if last_seq else f"the events from {first_seq} on"
    return f"{lost} were lost: a repair cut damage out of the journal"


APPLY: Final[ApplyTable] = {
    m.RunStarted: _started,
    m.ConfigChanged: _config_changed,
    m.DaemonStarted: _daemon_started,
    m.PauseRequested: _pause_requested,
    m.RunResumed: setting(pause=None, why="", gap=None),
    m.DiskLow: _disk_low,
    m.DiskRecovered: _disk_recovered,
    m.StopRequested: _stop_requested,
    m.RunStopped: setting(stop=None),
    m.StopAborted: setting(stop=None),
    m.RunCompleted: setting(stop=None),
    m.RunFailed: _failed,
    m.RunFrozen: _frozen,
    m.GapRecorded: _gap_recorded,
    m.RunRetried: setting(why="", failure=None),
}


def phase_after(phase: Phase, kind: type[m.Event]) -> Phase:
    """Return the phase after an event of this type; defined for every pair."""
    row = TRANSITIONS.get(kind)
    # Most events are in no row. Do not hash a phase for those: this runs in every step.
    return phase if row is None else row.get(phase, phase)


def _space_low(_: Disk, e: m.DiskLow, at: m.Cause) -> Disk:
    return Disk(low=at, free=e.free, floor=e.floor)


def _space_again(_: Disk, e: m.DiskRecovered, __: m.Cause) -> Disk:
    return Disk(free=e.free, floor=e.floor)


DISK: Final[ApplyTable] = {m.DiskLow: _space_low, m.DiskRecovered: _space_again}
