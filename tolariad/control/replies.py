"""The types of the control interface's replies: the status of a run, and the outcome of an order.

Servers make them from the folded state; clients check what they receive against them. Quick to load.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from tolariad.core.calc.copying import Copying

NumberState: TypeAlias = Literal["finite", "nan", "pos_inf", "neg_inf"]
Server: TypeAlias = Literal["daemon", "library"]
OutcomeState: TypeAlias = Literal["done", "failed", "overtaken", "ended"]
# The names of enums of core, whose values some texts have. Importing core would take longer than all the rest.
PHASE: Final = "RunPhase"
FAILURE: Final = "FailureKind"


class SaidStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A notable action of the run, recorded as event `seq`, as a sentence.

    `number` counts all actions from 1; `start` is the start of the daemon that it is from. `step`: the event's
    step, or null if it has none.
    """

    number: int
    start: int
    seq: int
    time: str
    event: str
    text: str
    step: int | None = None


class TroubleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Troubles of one kind, named by their type of event: how many there were, and the last one as a sentence.

    `why`: the topic of `tolaria why RUN` that tells more.
    """

    event: str
    count: int
    seq: int
    time: str
    text: str
    why: str


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy of the run, and its answers.

    * `asked`, `unanswered`: the number of questions, and of those without an answer.
    * `answered_epoch`: the newest epoch with an answer, or null.
    * `waits_for`: the epoch whose question is open.
    * `fallback`: the reason why the newest question has no answer.
    * `open`: the strategy failed so often that it is not asked for a while.
    """

    asked: int
    unanswered: int
    answered_epoch: int | None
    waits_for: int | None
    fallback: str | None
    open: bool


class SeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that is not empty, or not free yet: its stage by Leyline's name, and the seed's share in the output."""

    slot: str
    stage: str
    alpha: float


class PruneWindow(Copying, frozen=True, kw_only=True):
    """The safety window: the trainer judges updates up to `until_step`. `checkpoint` is the one before the masks.

    `accuracy_before` is the accuracy in the last validation before the masks; `loss_before` is its loss, if the task
    measures no accuracy.
    """

    cycle: int
    since_step: int
    until_step: int
    checkpoint: str
    accuracy_before: float | None
    loss_before: float | None


class PruneSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Pruning in the status of a run; fields as in PruneTable.

    `failures` is the number of failed cycles in a row, `why_failed` the reason why the last one failed.
    """

    phase: str
    why: str | None
    cycles: int
    analyzing: int | None
    total: int | None
    masked: int
    removed: int
    share: float
    total_parameters: int | None
    masked_parameters: int
    removed_parameters: int
    failures: int
    why_failed: str | None
    window: PruneWindow | None


class CheckpointStatus(Copying, frozen=True, kw_only=True):
    """The newest usable checkpoint.

    `given_up` is the reason why a later checkpoint was not completed, if one was begun.
    """

    id: str
    step: int
    epoch: int
    size: int
    time: str
    age_s: float | None
    given_up: str | None = None


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the journal: last event, segment, why writing failed (if it did), age of a write in flight."""

    seq: int
    segment: int
    failed: str | None
    write_age_s: float | None


class TrainerStatus(Copying, frozen=True, kw_only=True):
    """The current or last trainer process. `deaths` counts those in a row without a new durable step.

    `spare_bytes`: the memory of a spare that waits to take its place; absent without one.
    """

    alive: bool
    pid: int
    incarnation: int
    deaths: int
    deaths_total: int
    last_death: str | None
    activity: str | None
    waiting: bool
    heartbeat_step: int | None
    heartbeat_age_s: float | None
    spare_bytes: int | None = None


class RankStatus(Copying, frozen=True, kw_only=True):
    """One of several ranks: its process, the means of its newest timed steps, and the samples of its step.

    `process`: `running`, `stopped` by a signal, or `gone`; absent if the run is not live.
    """

    rank: int
    pid: int
    process: str | None
    compute_s: float | None
    wait_s: float | None
    batch: int | None


class RanksStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that train together. `slowest`: the one that the others wait for, in `share` (0 to 1) of a step.

    `batch`: the samples of a step of all ranks; absent if they are not known.
    """

    ranks: tuple[RankStatus, ...]
    slowest: int | None
    share: float | None
    batch: int | None


class ConservativeStatus(Copying, frozen=True, kw_only=True):
    """Conservative mode: the run starts nothing new, and takes checkpoints twice as often."""

    since: str
    age_s: float | None
    why: str
    healthy_epochs: int


class MemoryStatus(Copying, frozen=True, kw_only=True):
    """A part of the run holds `percent` of its memory, over its share `limit`: the trainer keeps none for later."""

    since: str
    age_s: float | None
    budget: str
    percent: float
    limit: float


class EmergencyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The highest emergency level since the last healthy epoch, or since an operator resumed the run."""

    level: str
    why: str


class ReceiverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of telemetry, and its messages since it was configured: a key of `notify` or of `telemetry`.

    `dropped`: had no room, or were refused; `thinned`: left out in conservative mode. `why`: it takes none now.
    """

    to: str
    waiting: int
    sent: int
    dropped: int
    thinned: int
    why: str | None = None


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The newest announced stage: what changed, and its first update."""

    why: str
    step: int


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of `Status`, and the output of `tolaria status --json`.

    A number that is not finite is null; the field `..._state` beside it holds `nan`, `pos_inf` or `neg_inf`. `time` is
    now or, without a daemon, the time of the last step or of the run's start. `metrics`: all values of the last
    validation, by the task's names; `step_metrics`: those of the last step. `said`: the newest actions, oldest first.
    `troubles`: all kinds that there were since the run began, the one that occurred last at the end. `served_by`:
    `daemon` or `library` (a program that calls `Tolaria.train` or `run`), absent if the run is not live; `pid` is this
    process. `detector`: what it does not act on, if findings are only recorded. `stage`: the
    newest announced stage. `receivers`: those of telemetry, of a live run. `dir_inode`: device and inode of `dir`,
    of a live run: a client compares them, because a copy of the folder has the same run's id.
    `ranks`: those of several processes, once they were timed.
    `dead`: the run has not ended, but nothing records it: its process was killed on this machine. If the run was
    recorded on another machine, or before this one was booted, that is not known.
    """

    name: str
    run_id: str
    dir: str
    task: str
    phase: Annotated[str, PHASE]
    live: bool
    pid: int | None
    time: str
    epoch: int
    epochs: int
    step: int
    steps_total: int | None
    steps_per_epoch: int | None
    loss: float | None
    loss_state: NumberState | None
    grad_norm: float | None
    grad_norm_state: NumberState | None
    lr: float | None
    lr_state: NumberState | None
    train_loss: float | None
    train_loss_state: NumberState | None
    validation_loss: float | None
    validation_loss_state: NumberState | None
    accuracy: float | None
    accuracy_state: NumberState | None
    best_accuracy: float | None
    metrics: dict[str, float | None]
    steps_per_s: float | None
    eta_s: float | None
    ordered: str | None
    frozen: str | None
    last_error: str | None
    failure: Annotated[str, FAILURE] | None
    rerunning_to: int | None
    rng_seed: int
    starts: int
    checkpoint: CheckpointStatus | None
    checkpoint_none: str | None
    journal: JournalStatus
    trainer: TrainerStatus | None
    conservative: ConservativeStatus | None
    memory: MemoryStatus | None
    emergency: EmergencyStatus | None
    disk_low: str | None
    strategy: StrategyStatus | None = None
    said: tuple[SaidStatus, ...] = ()
    troubles: tuple[TroubleStatus, ...] = ()
    served_by: Server | None = None
    step_metrics: dict[str, float | None] = {}
    seeds: tuple[SeedStatus, ...] = ()
    pruning: PruneSummary | None = None
    detector: str | None = None
    dir_inode: str | None = None
    stage: StageStatus | None = None
    dead: bool = False
    ranks: RanksStatus | None = None
    receivers: tuple[ReceiverStatus, ...] = ()


class RollbackPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollback went back to, and how many steps it gave up.

    With `batch` 0 the place is before the first batch of `epoch`.
    """

    checkpoint: str
    step: int
    epoch: int
    batch: int
    given_up: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an order ended: `event` ended it (absent if the run's process ended first).

    `why` is the reason if the order was not done. For a stop that was done, it is the reason why its last checkpoint is
    missing. For other orders it says what was done, if there is more to say. `step` is the first step on which the
    order acts.
    """

    state: OutcomeState
    seq: int | None = None
    event: str | None = None
    step: int | None = None
    why: str | None = None
    rollback: RollbackPlace | None = None


class Recorded(msgspec.Struct, frozen=True):
    """The reply to an order: the number of its event, and the outcome once there is one."""

    seq: int
    outcome: Outcome | None = None
