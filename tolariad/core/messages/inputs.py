"""The kernel's inputs: the only way in which anything from outside reaches a decision.

Promises: time, process ids, random and measured values arrive here as fields, so the same state and input always give
the same decision.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from tolariad.core.calc.units import Nanoseconds, Seconds
from tolariad.core.messages import strategy
from tolariad.core.messages.base import Actor, Event
from tolariad.core.messages.budget import BudgetHistogram
from tolariad.core.messages.pruning import PruneAnalyzed
from tolariad.core.messages.run import ConfigChanged
from tolariad.core.messages.trainer import DeathReason, SchedulingRecorded, SpareChanged, TrainerDied, TrainerEnded
from tolariad.core.messages.vocabulary import AnyCommand, Report


class Now(msgspec.Struct, frozen=True):
    """The moment at which an input was taken: wall time as read, monotonic time of this boot."""

    wall: Nanoseconds
    mono: Nanoseconds


class StartMode(enum.Enum):
    """How the daemon was started (interface section 6). `retry`: `--retry` was given, for a failed run."""

    EXPLICIT = "explicit"
    ACTIVATED = "activated"
    RETRY = "retry"


class Input(msgspec.Struct, frozen=True):
    """An input of the kernel. The type of each is derived from this one."""


class DiskMeasured(Input, frozen=True, kw_only=True):
    """The free space on the journal's disk, and the space that the run needs."""

    free: int
    floor: int


class Opened(Input, frozen=True, kw_only=True):
    """The journal is folded and open. `facts` are recorded first, in this order (recovery, new run, daemon, config).

    `disk`: None if the disk could not be measured.
    """

    mode: StartMode
    facts: tuple[Event, ...]
    disk: DiskMeasured | None = None


class CommandReceived(Input, frozen=True, kw_only=True):
    """An operator's order, with the peer of the socket."""

    command: AnyCommand
    actor: Actor


class SignalReceived(Input, frozen=True, kw_only=True):
    """The `count`-th stop signal to the daemon."""

    count: int
    name: str


class ReportReceived(Input, frozen=True, kw_only=True):
    """A report of the living trainer. Reports arrive in the order of their numbers."""

    incarnation: int
    report: Report


class TrainerSpawned(Input, frozen=True, kw_only=True):
    """A trainer process exists. `start_ticks` is field 22 of its /proc/PID/stat."""

    incarnation: int
    pid: int
    start_ticks: int
    boot_id: str


class TrainerGone(Input, frozen=True, kw_only=True):
    """The trainer is reaped and its channel is drained, or it could not be started. `in_program`: see TrainerDied."""

    incarnation: int
    reason: DeathReason
    pid: int = 0
    exit_code: int | None = None
    signal: str = ""
    output: str = ""
    stacks: str = ""
    in_program: bool = False
    rank: int = 0


class TrainerSilent(Input, frozen=True, kw_only=True):
    """The trainer sent no heartbeat for longer than its present activity allows. It is ended next."""

    incarnation: int
    activity: str
    silent_s: Seconds
    limit_s: Seconds
    rank: int = 0


class TrainerStuck(Input, frozen=True, kw_only=True):
    """SIGKILL was sent long ago, and the process still exists."""

    incarnation: int
    pid: int
    state: str
    waited_s: Seconds


class ReportUnusable(Input, frozen=True, kw_only=True):
    """A report of the living trainer cannot be read, or its consequences cannot be recorded."""

    incarnation: int
    why: str


class CheckpointRemoved(Input, frozen=True, kw_only=True):
    """The result of an order to remove a checkpoint: the bytes freed, or why it still exists."""

    id: str
    freed: int = 0
    error: str = ""


class RollbackOverdue(Input, frozen=True):
    """The deadline of the open rollback has passed."""

    rollback: str


class RingPrepared(Input, frozen=True, kw_only=True):
    """The result of an order for memory: the number and size of its slots, or why there are none."""

    slots: int
    slot_bytes: int
    why: str = ""


class SnapshotDiffers(Input, frozen=True, kw_only=True):
    """The contents of a snapshot's slot differ from its recorded digests."""

    id: str
    why: str


class Reconfigured(Input, frozen=True, kw_only=True):
    """The configuration was read again. Only keys differ that may change during a run."""

    change: ConfigChanged


class Scheduled(Input, frozen=True, kw_only=True):
    """Cores and scheduling class as the system granted them."""

    recorded: SchedulingRecorded


class SpareNoted(Input, frozen=True, kw_only=True):
    """What became of the spare."""

    recorded: SpareChanged


class BudgetsReported(Input, frozen=True, kw_only=True):
    """The daemon's own measurements since the last such input."""

    tallies: tuple[BudgetHistogram, ...]


class StrategyReply(Input, frozen=True, kw_only=True):
    """The strategy's answer to the question of this generation, with its state after it.

    `fallback`: why it has none; then there are no commands. `is_late`: because it was not there in time. `misread`:
    messages of another version of the contract.
    """

    generation: int
    commands: tuple[strategy.StrategyCommand, ...] = ()
    state: bytes = b""
    spans: strategy.StrategySpans = strategy.StrategySpans()
    packet_bytes: int = 0
    fallback: str = ""
    is_late: bool = False
    misread: int = 0


class StrategyOverdue(Input, frozen=True, kw_only=True):
    """The time for an answer to the question of this generation is over."""

    generation: int


class VoteGiven(Input, frozen=True, kw_only=True):
    """The strategy's vote on the rollback to `checkpoint`, or that its time is over."""

    rollback: str
    checkpoint: str
    vote: strategy.Vote
    why: str = ""
    seconds: Seconds = 0.0


class AnalysisReply(Input, frozen=True, kw_only=True):
    """The end of the analysis of this cycle: what it found, or why there is nothing, as a clause."""

    cycle: int
    found: PruneAnalyzed | None = None
    why: str = ""


# After each of these no trainer lives. After `Opened`, because the trainer of the previous daemon died with it.
TrainerIsGone: TypeAlias = Opened | TrainerDied | TrainerEnded
