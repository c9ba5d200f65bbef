"""The run as a whole: it starts, is recovered, goes on, stops, completes, fails or freezes; and the disk under it."""

import enum
from typing import Final

import msgspec

from tolariad.core.calc.pruning.plan import PrunePlan
from tolariad.core.calc.seeds.stages import Learning
from tolariad.core.calc.settings.values import Better
from tolariad.core.calc.units import Bytes, Hex, Seconds, Seq, Step
from tolariad.core.messages.base import DaemonEffect, Event

# The weights that a run begins with, if it was given a file of them.
INIT_NAME: Final = "init.safetensors"


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens, for how long, and how many successes close it again."""

    failures: int = 3
    reset_s: Seconds = 30.0
    probes: int = 1


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The few configured values by which the kernel decides. The rest concerns the trainer only."""

    epochs: int
    checkpoint_every_epochs: int = 10
    checkpoint_interval_s: Seconds = 180.0
    checkpoint_gap_s: Seconds = 30.0
    # 0: none.
    checkpoint_every_steps: Step = 0
    keep_last: int = 3
    # 0: no limit. Runs of older versions have no such field.
    keep: int = 0
    keep_days: float = 7.0
    importance_days: float = 30.0
    quota: Bytes = 100_000_000_000
    sync: str = "step"
    deaths_max: int = 5
    stop_epochs: int | None = None
    stop_steps: Step | None = None
    stop_hours: float | None = None
    stop_tokens: int | None = None
    patience: int | None = None
    metric: str = ""
    better: Better = Better.MIN
    keep_best: bool = False
    max_order_factor: float = 10.0
    lr_failures: int = 3
    lr_reset_s: Seconds = 30.0
    lr_probes: int = 1
    # `detect_finite` false: findings of finite values are only recorded. No configuration says so any more.
    detect_rollback: bool = True
    detect_finite: bool = True
    detect_halt: bool = False
    detect_trial: bool = True
    # Batches of one update.
    accumulate: int = 1
    skip_batches: bool = True
    skip_batch_on_death: bool = False
    budgets_act: bool = True
    budget_limits: dict[str, float] = {}
    breakers: dict[str, BreakerLimits] = {}
    # `snapshot_slots` 0: the fast tier is off. `snapshot_every` (steps) and `snapshot_every_s` both 0: one per epoch,
    # and within epochs if `snapshot_share` of the time pays for it; 0: none within them.
    snapshot_slots: int = 0
    snapshot_every: int = 0
    snapshot_every_s: Seconds = 0.0
    snapshot_share: float = 0.0
    snapshot_watch: int = 32
    snapshot_memory: Bytes | None = None
    # Also in `budget_limits`, where they are read.
    fast_budget_s: Seconds = 0.5
    full_budget_s: Seconds = 12.0
    rate_factor: float = 1.0
    chance: float | None = None
    # Of seeds. `seed_warmup_epochs` None: the rate of a seed follows the host's curve.
    morphogenesis: bool = True
    blend_steps: int = 100
    embargo_epochs: int = 5
    max_regression: float = 0.05
    seeds_evaluate: Learning = Learning.TRAIN
    seeds_fossil: Learning = Learning.TRAIN
    seed_warmup_epochs: int | None = None
    # The name of a strategy, or one of the words in `core.messages.strategy`.
    strategy: str = "none"
    # None: nothing is pruned.
    prune: PrunePlan | None = None


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that the service manager granted; it lowers limits without a message. -1: unlimited or unknown."""

    rtprio: int = -1
    memlock: Bytes = -1
    nofile: int = -1
    oom_score_adj: int = 0
    scheduler: str = ""


class StopMode(enum.Enum):
    """`graceful` ends with a checkpoint at the next boundary, `now` without one; `kill` does not wait."""

    GRACEFUL = "graceful"
    NOW = "now"
    KILL = "kill"


class Origin(enum.Enum):
    """Where an order came from. It decides what a daemon does at its start if the order is not complete."""

    COMMAND = "command"
    SIGNAL = "signal"
    START = "start"
    DISK = "disk"


class FailureKind(enum.Enum):
    """Why a run failed. The daemon's exit code follows from it."""

    TRAINER = "trainer"
    CONFIGURATION = "configuration"
    DIVERGED = "diverged"
    CHECKPOINT = "checkpoint"
    STORAGE = "storage"
    DATA = "data"
    CODE = "code"


class Parent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoint that a run begins from instead of fresh weights. `manifest`: the hash of its manifest.

    `file`: a file of weights instead, as it was named. The run's folder has a copy (INIT_NAME), whose hash `manifest`
    is; the other fields are empty.
    """

    run_id: Hex
    checkpoint: str
    manifest: Hex
    folder: str
    with_optimizer: bool = False
    file: str = ""

    @property
    def words(self) -> str:
        """Return what it is."""
        return self.file or f"{self.checkpoint} of {self.folder}"


class RunStarted(Event, frozen=True, kw_only=True):
    """A new run began. `config` is the resolved configuration as JSON, `policy` the part by which the kernel decides.

    `parent`: the id of the run whose weights it begins with. `began_from`: everything known about them.
    """

    run_id: Hex
    name: str
    task: str
    rng_seed: int
    config: str
    config_hash: Hex
    policy: Policy
    version: str
    parent: str = ""
    began_from: Parent | None = None


class DaemonStarted(Event, frozen=True, kw_only=True):
    """A daemon opened the journal and folded it. Recorded at every start, even if nothing is left to do.

    `accept_data`: the operator allowed the first trainer of this start to have other data than the run had.
    `accept_code`: steps that are made again may differ, because the code has changed.
    """

    pid: int
    boot_id: Hex
    host: str
    version: str
    limits: ServiceLimits
    activated: bool = False
    accept_data: bool = False
    accept_code: bool = False


class JournalRecovered(Event, frozen=True, kw_only=True):
    """When the journal was opened, a tail that was never acknowledged was set aside."""

    kind: str
    file: str
    offset: Bytes
    bytes_cut: Bytes
    quarantine: str = ""


class GapRecorded(Event, frozen=True, kw_only=True):
    """A repair gave up acknowledged events by an operator's order. This event takes the place of the first of them.

    The lost events are at least `first_seq` to `last_seq` (0: nothing after the damage could be read). `segments`: how
    many whole segments after the damaged file were set aside. `checkpoints_seen`: the highest number of a checkpoint on
    disk.
    """

    first_seq: Seq
    last_seq: Seq
    file: str
    offset: Bytes
    segments: int
    damage: str
    why: str
    checkpoints_seen: int = 0


class ConfigChanged(Event, frozen=True, kw_only=True):
    """The configuration changed. `keys` are the dotted names that differ."""

    config: str
    config_hash: Hex
    policy: Policy
    keys: tuple[str, ...]


class RunPaused(Event, frozen=True, kw_only=True):
    """Training paused at the boundary before step `applied_before_step`."""

    applied_before_step: Step


class RunResumed(Event, frozen=True, kw_only=True):
    """Training goes on: after a pause, or because a daemon was started on a stopped run."""

    origin: Origin = Origin.COMMAND


class RunStopped(Event, frozen=True, kw_only=True):
    """The run was stopped by an order. `checkpoint` is the newest committed one.

    `why`: if `checkpoint` is not of `step`, the reason, and the step from which a start goes on.
    """

    step: Step
    mode: StopMode
    checkpoint: str = ""
    why: str = ""


class StopAborted(Event, frozen=True, kw_only=True):
    """A stop ordered by a signal was cut short by the end of its daemon. The next start goes on instead."""

    why: str


class RunCompleted(Event, frozen=True, kw_only=True):
    """The run is complete: `epochs` whole epochs or a limit are done, and the last checkpoint is committed."""

    step: Step
    epochs: int
    checkpoint: str


class RunFailed(Event, frozen=True, kw_only=True):
    """The run failed and cannot go on by itself."""

    kind: FailureKind
    why: str


class RunRetried(Event, frozen=True, kw_only=True):
    """A failed run was started again by an operator's order. The count of deaths is reset."""


class RunFrozen(Event, frozen=True, kw_only=True):
    """The run was frozen: no update may begin until `tolaria resume`. `why` gives the reason."""

    why: str


class DiskLow(Event, frozen=True, kw_only=True):
    """Fewer than `floor` bytes are free on the journal's disk. The run pauses, and writes no checkpoint."""

    free: Bytes
    floor: Bytes


class DiskRecovered(Event, frozen=True, kw_only=True):
    """The journal's disk has space again. A run that paused for it goes on. The cause is the DiskLow event."""

    free: Bytes
    floor: Bytes


class ExitDaemon(DaemonEffect, frozen=True, kw_only=True):
    """End the daemon with this code: nothing is left to do (interface section 4)."""

    code: int
    why: str = ""
