"""The configuration as values: every key below `tolaria:`, with its type, range, default and description.

Promises: every value is plain data (text, numbers, tuples, nested Structs), is frozen, and has a default. `Settings()`
is the configuration of an empty document. A field that depends on the machine (threads, device, determinism) stays None
or "auto" here. The trainer resolves it and records its choice. The preferences of the built-in tasks are not here but
in `core/calc/settings/task_defaults.py`.

Ranges and descriptions are annotations: the loader, the JSON Schema, docs/configuration.md and the reader use them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from tolariad.core.calc.settings import values as units
from tolariad.core.calc.settings.copies import Checkpoint, Snapshots
from tolariad.core.calc.settings.followers import Followers
from tolariad.core.calc.settings.optimization import LearningRate, Optimizer, PartOptimizer
from tolariad.core.calc.settings.processes import Parallel, TrainerSettings
from tolariad.core.calc.settings.pruning import Prune
from tolariad.core.calc.settings.receivers import Notify, Telemetry
from tolariad.core.calc.settings.seeds import SeedSettings

# How long an orderly stop may take before the daemon ends without it. The service manager's limit (TimeoutStopSec in
# systemd/tolariad@.service) must be longer, or its SIGKILL always comes first. A test compares the two.
STOP_BUDGET_S: Final = 75.0

Scalar: TypeAlias = str | units.Number64 | float | bool | None


class Performance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that the run is measured against."""

    epoch_boundary_ms: Annotated[
        units.Milliseconds, Meta(description="budget of an epoch boundary, without the validation")
    ] = 18.0
    training_degradation_percent: Annotated[units.Percent, Meta(description="throughput that recording may cost")] = 7.5
    memory_overhead_percent: Annotated[units.Percent, Meta(description="memory that recording may add")] = 8.5


class Rollback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two tiers of rollback: the fast one from a snapshot in memory, the full one from a checkpoint on disk."""

    fast_path_enabled: Annotated[bool, Meta(description="keep snapshots in memory and try them first")] = True
    fast_path_timeout_ms: Annotated[int, Meta(ge=1, le=1_000_000_000, description="budget of the fast tier")] = 500
    full_path_timeout_s: Annotated[
        units.PositiveSeconds, Meta(description="budget of the full tier, for 1 B parameters")
    ] = 12.0
    checkpoint_cache_size: Annotated[int, Meta(ge=0, le=1024, description="greatest number of snapshots in memory")] = 5
    rate_factor: Annotated[
        float,
        Meta(gt=0, le=1, description="a rollback by the detector multiplies every learning rate by this; 1: no change"),
    ] = 1.0
    skip_batches: Annotated[
        bool, Meta(description="after a rollback by the detector, skip the batches that led to it")
    ] = True


class Integration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for the neighbouring subsystems."""

    tamiyo_timeout_s: Annotated[units.PositiveSeconds, Meta(description="timeout for the strategy's answer")] = 2.0
    oona_backpressure_limit: Annotated[
        int, Meta(ge=1, le=100_000_000, description="greatest number of messages in the telemetry queue")
    ] = 10000
    protobuf_version: Annotated[Literal[1], Meta(description="version of Leyline's messages")] = 1


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How data are checked at the first start."""

    ignore: Annotated[
        tuple[str, ...],
        Meta(description="fields of an item that nobody trains on: they may differ when the item is read again"),
    ] = ()


class JournalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the journal is written."""

    sync: Annotated[
        Literal["step", "batch", "auto"],
        Meta(
            description="`step`: write each step at once; `batch`: write together what comes within 50 ms; "
            "`auto`: choose by the length of a step"
        ),
    ] = "auto"
    segment_bytes: Annotated[int, Meta(ge=65_536, le=2**40, description="size of a journal segment in bytes")] = (
        100_000_000
    )
    allow_filesystem: Annotated[
        bool, Meta(description="allow a network or stacked file system, on which durability is not tested")
    ] = False


class Control(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The control socket, and who may change the run through it. Every user who can connect may read."""

    socket: Annotated[
        bool,
        Meta(description="a run of the library serves a control socket; false: it has none. A daemon always has one"),
    ] = True
    operators: Annotated[
        tuple[str, ...] | None,
        Meta(description="user names, uids or @groups; absent: the daemon's user, root and the socket's group"),
    ] = None


class Breaker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One circuit breaker: it opens after failures in a row, and the operation is tried again later."""

    failures: Annotated[units.Positive, Meta(description="failures in a row that open the breaker")] = 3
    reset_s: Annotated[units.PositiveSeconds, Meta(description="seconds until an open breaker is tried again")] = 30.0
    probes: Annotated[units.Positive, Meta(description="successes in a row that close it again")] = 1


class Logging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon's log, on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="lowest level that is written")] = (
        "info"
    )
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="auto: text; the journal's fields under systemd, JSON under another service manager"),
    ] = "auto"


class Metrics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metrics for Prometheus."""

    listen: Annotated[str | None, Meta(description="host:port beside the run's `metrics.sock`; absent: none")] = None


class Budgets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The consequences of an overrun of a budget."""

    act: Annotated[
        bool, Meta(description="an overrun may open a breaker and lead to conservative mode; false: only record it")
    ] = True


class Detect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The instability detector. It judges loss and gradient norm of every step before the update."""

    sync: Annotated[
        bool,
        Meta(description="on CUDA, wait for the loss before the update; false: no step is skipped on CUDA"),
    ] = False
    act: Annotated[bool, Meta(description="react to a finding; false: only record it")] = True
    skip: Annotated[
        bool,
        Meta(
            description="skip a non-finite or spiking batch; false: roll back if non-finite, otherwise only record it"
        ),
    ] = True
    rollback: Annotated[
        bool,
        Meta(description="go back from values that are not finite, and from damage; false: only record findings"),
    ] = True
    trial: Annotated[
        bool,
        Meta(description="if nothing tells whether going back would help, try both ways; false: go on"),
    ] = True
    halt: Annotated[
        bool,
        Meta(description="halt if two rollbacks did not help; false: halt only if a value is not finite"),
    ] = False
    chance: Annotated[
        units.Fraction | None,
        Meta(description="the accuracy of guessing, 1 / classes; a validation that falls to it counts as a collapse"),
    ] = None


class Digest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of the parameters in the journal."""

    every_steps: Annotated[
        units.Positive | None,
        Meta(description="steps between two digests; absent: chosen so that they cost under 0.5 % of a step"),
    ] = None


class GradNorm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gradient norm in step reports."""

    every: Annotated[units.Positive, Meta(description="steps between two measurements; the other steps record -1")] = 1


class Audit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audit: an update is computed a second time from the recorded rates and compared."""

    every_steps: Annotated[
        units.Positive, Meta(description="steps between two audits; each audits one sampled tensor")
    ] = 1000


class Stop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that end the run before `epochs` are done. The first one that holds ends it."""

    epochs: Annotated[
        units.Epochs | None, Meta(description="end after so many epochs; the schedule is still drawn for `epochs`")
    ] = None
    steps: Annotated[
        units.Positive | None,
        Meta(
            description="end after so many optimizer updates; if the data has no length, the schedule is drawn for them"
        ),
    ] = None
    tokens: Annotated[
        units.Positive | None,
        Meta(
            description="end after the step with the last one of so many tokens; the task counts them: `loss` returns "
            "`tokens` beside the loss"
        ),
    ] = None
    hours: Annotated[
        units.Hours | None,
        Meta(description="end after so many hours of training; pauses, restarts and re-run steps do not count"),
    ] = None
    patience: Annotated[
        units.Epochs | None,
        Meta(
            description="end after so many validations in a row without a better one, by `keep_best`, otherwise by "
            "loss; without `validate.every_steps` these are epochs"
        ),
    ] = None


class Validate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Validations within an epoch, in addition to the one after each epoch."""

    every_steps: Annotated[
        units.Positive | None,
        Meta(
            description="steps between two validations, counted from the run's beginning; `stop.patience`, `keep_best` "
            "and the policy `morpho_adaptive` judge each of them; absent: none within an epoch"
        ),
    ] = None


SignalWord: TypeAlias = Literal["checkpoint", "stop"]


class SignalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What SIGUSR1 and SIGUSR2 to the daemon, or to a program of the library, do: warnings of job schedulers.

    `checkpoint` writes one at the next step boundary, and the run goes on. `stop` ends the run there with a checkpoint,
    as SIGTERM does.
    """

    USR1: Annotated[SignalWord, Meta(description="what SIGUSR1 does")] = "checkpoint"
    USR2: Annotated[SignalWord, Meta(description="what SIGUSR2 does")] = "checkpoint"


class Ema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exponential moving average of the weights: `average += (1 - decay) * (weights - average)` after every step.

    Training, hooks and the optimizer see the weights themselves; checkpoints hold both.
    """

    decay: Annotated[
        units.Fraction | None,
        Meta(
            description="weight of the past; absent: no average. It starts at the initial weights. Validation uses the "
            "average, with the model's own buffers, which are not averaged"
        ),
    ] = None


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All keys below `tolaria:`."""

    task: Annotated[
        str | None,
        Meta(
            description="`digits`, `chars`, `package.module:Name`, or `./file.py:Name` relative to this file's folder; "
            "`lightning:` before either names a LightningModule"
        ),
    ] = None
    task_options: Annotated[dict[str, Scalar], Meta(description="passed to the task, such as `{model: cnn}`")] = {}
    epochs: Annotated[units.Epochs, Meta(description="epochs of the run, and of its schedule")] = 100
    batch_size: Annotated[units.Positive, Meta(description="samples in a batch")] = 64
    workers: Annotated[units.Processes, Meta(description="processes that load data; 0: the trainer loads it")] = 0
    rng_seed: Annotated[units.Seed64 | None, Meta(description="seed; absent: drawn and recorded in the journal")] = None
    device: Annotated[
        str, Meta(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$", description="auto: the first CUDA device, else the CPU")
    ] = "auto"
    torch_threads: Annotated[
        units.Threads | None,
        Meta(
            description="threads of torch; absent: `OMP_NUM_THREADS`, else all cores for a CPU run, all but one for a "
            "GPU run"
        ),
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Meta(
            description="number format of the forward pass; parameters stay fp32. fp16 scales the loss and skips a "
            "step if its gradients overflow"
        ),
    ] = "fp32"
    accumulate: Annotated[
        units.Positive,
        Meta(description="micro-batches of `batch_size` in each update; the last update of an epoch may have fewer"),
    ] = 1
    compile: Annotated[
        bool, Meta(description="use torch.compile for the forward pass; each shape of batch is compiled once")
    ] = False
    determinism: Annotated[
        Literal["strict", "warn", "off"] | None,
        Meta(description="torch's deterministic algorithms; absent: strict on the CPU, warn on CUDA"),
    ] = None
    parallel: Parallel = Parallel()
    on_death: Annotated[
        Literal["fail", "skip_batch"],
        Meta(description="if the trainer dies at the same batch again and again: fail the run, or skip the batch"),
    ] = "fail"
    stop: Stop = Stop()
    validate: Validate = Validate()
    signals: SignalSettings = SignalSettings()
    learning_rate: LearningRate = LearningRate()
    optimizer: Optimizer = Optimizer()
    optimizers: Annotated[
        dict[str, PartOptimizer], Meta(description="an optimizer for each part of the model, by the part's name")
    ] = {}
    checkpoint_interval_epochs: Annotated[
        units.Epochs,
        Meta(
            description="epochs between two checkpoints; none is taken within `checkpoint.min_gap_s` of the one before"
        ),
    ] = 10
    checkpoint: Checkpoint = Checkpoint()
    checkpoint_storage_quota_gb: Annotated[units.Gigabytes, Meta(description="disk space for checkpoints")] = 100.0
    keep_best: Annotated[
        units.MetricName | None,
        Meta(
            description="metric of the validation; the checkpoint of the best one is never deleted: `loss`, "
            "`accuracy`, `NAME:min` or `NAME:max`",
        ),
    ] = None
    data: Data = Data()
    journal: JournalSettings = JournalSettings()
    control: Control = Control()
    logging: Logging = Logging()
    metrics: Metrics = Metrics()
    telemetry: Telemetry = Telemetry()
    notify: Notify = Notify()
    follow: Followers = ()
    performance: Performance = Performance()
    budgets: Budgets = Budgets()
    breakers: Annotated[
        dict[str, Breaker], Meta(description="breakers by name: `lr`, or a soft budget for a time")
    ] = {}
    detect: Detect = Detect()
    stages: Annotated[
        dict[units.Positive, units.StageText],
        Meta(
            description="changes that may make the loss jump, `{1000: label smoothing on}`: each by the first update "
            "that it affects. The detector then learns the loss's new level"
        ),
    ] = {}
    digest: Digest = Digest()
    grad_norm: GradNorm = GradNorm()
    audit: Audit = Audit()
    rollback: Rollback = Rollback()
    trainer: TrainerSettings = TrainerSettings()
    snapshots: Snapshots = Snapshots()
    ema: Ema = Ema()
    integration: Integration = Integration()
    enable_morphogenetic: Annotated[bool, Meta(description="let seeds and pruning change the model")] = True
    strategy: Annotated[
        str | None,
        Meta(
            description="`none`, `default`, `package.module:Name` or `./file.py:Name`; absent: the default policy, if "
            "the model has seed slots",
        ),
    ] = None
    seeds: SeedSettings = SeedSettings()
    prune: Prune = Prune()
    pruning_phase_transition_epoch: Annotated[
        units.EpochCount, Meta(description="epoch at which pruning may begin")
    ] = 30
    pruning_checkpoint_interval: Annotated[int, Meta(ge=2, le=5, description="epochs between pruning checkpoints")] = 5
