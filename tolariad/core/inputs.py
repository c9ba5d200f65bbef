"""What the kernel is told: the only way anything from outside reaches a decision.

Promises: time, process ids and everything drawn or measured enters here, as a field; the same state and input always give
the same decision. It must not know: who measured, or how.
"""

from __future__ import annotations

import enum

import msgspec

from tolariad.core.base import Nanoseconds, Seconds
from tolariad.core.health.budget_words import Tally
from tolariad.core.run.words import ConfigChanged
from tolariad.core.trainer.words import DeathReason, SchedulingRecorded
from tolariad.core.vocabulary import Actor, AnyCommand, Event, Report


class Now(msgspec.Struct, frozen=True):
    """The moment an input was taken: wall time as read, monotonic time of this boot."""

    wall: Nanoseconds
    mono: Nanoseconds


class StartMode(enum.Enum):
    """How the daemon was started (interface section 6); `retry` is `--retry` on a failed run."""

    EXPLICIT = "explicit"
    ACTIVATED = "activated"
    RETRY = "retry"


class DiskMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """How much is free on the journal's disk, and how much must be for the run to go on."""

    free: int
    floor: int


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The journal is folded and begun. `facts` are recorded first, in this order (recovery, new run, daemon, config).

    `disk` is None where the disk could not be measured.
    """

    mode: StartMode
    facts: tuple[Event, ...]
    disk: DiskMeasured | None = None


class CommandReceived(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's order, with the peer as the socket's other end was seen."""

    command: AnyCommand
    actor: Actor


class SignalReceived(msgspec.Struct, frozen=True, kw_only=True):
    """The `count`-th stop signal to the daemon."""

    count: int
    name: str


class ReportReceived(msgspec.Struct, frozen=True, kw_only=True):
    """A report of the living trainer, in the order of the running number."""

    incarnation: int
    report: Report


class TrainerSpawned(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer process exists; `start_ticks` is field 22 of its /proc/PID/stat."""

    incarnation: int
    pid: int
    start_ticks: int
    boot_id: str


class TrainerGone(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer is reaped and its channel drained (or it could not be started at all)."""

    incarnation: int
    reason: DeathReason
    pid: int = 0
    exit_code: int | None = None
    signal: str = ""
    output: str = ""
    stacks: str = ""


class TrainerSilent(msgspec.Struct, frozen=True, kw_only=True):
    """No heartbeat for longer than the present activity allows; it is ended next."""

    incarnation: int
    activity: str
    silent_s: Seconds
    limit_s: Seconds


class TrainerStuck(msgspec.Struct, frozen=True, kw_only=True):
    """SIGKILL was sent long ago and the process is still there."""

    incarnation: int
    pid: int
    state: str
    waited_s: Seconds


class ReportUnusable(msgspec.Struct, frozen=True, kw_only=True):
    """A report of the living trainer cannot be read, or what follows from it cannot be recorded."""

    incarnation: int
    why: str


class CheckpointRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order to remove a checkpoint: bytes that are free now, or why it is still there."""

    id: str
    freed: int = 0
    error: str = ""


class RollbackOverdue(msgspec.Struct, frozen=True):
    """The deadline of a rollback under way has passed."""

    rollback: str


class RingPrepared(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order for memory: so many slots of such a size, or why there are none."""

    slots: int
    slot_bytes: int
    why: str = ""


class SnapshotDiffers(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a snapshot's slot is not what was recorded of it."""

    id: str
    why: str


class Reconfigured(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was read again; only keys differ that a running daemon may take over."""

    change: ConfigChanged


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """Cores and scheduling class were asked for, and this is what the system gave."""

    recorded: SchedulingRecorded


class BudgetsTold(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon itself measured since the last time."""

    tallies: tuple[Tally, ...]


Input = (
    Opened
    | CommandReceived
    | SignalReceived
    | ReportReceived
    | TrainerSpawned
    | TrainerGone
    | TrainerSilent
    | TrainerStuck
    | ReportUnusable
    | CheckpointRemoved
    | RingPrepared
    | SnapshotDiffers
    | RollbackOverdue
    | Reconfigured
    | Scheduled
    | DiskMeasured
    | BudgetsTold
)
