"""The configuration as values: what `tolaria:` in a YAML file may hold, with types, ranges, defaults and descriptions.

Promises: every value here is plain data (text, numbers, tuples, nested Structs), frozen, and has a default, so
`Settings()` is the configuration of a document that is silent. A field that depends on the machine (threads, device,
grade of determinism) stays None or "auto" here and is resolved by the trainer, which then records what it took.
It must not know: YAML, files, environment variables, or what any task prefers (`core/settings/task_defaults.py`).

The ranges and descriptions live in the annotations because four readers share them: the loader, the JSON Schema, the
generated page docs/configuration.md, and the person who opens this file.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from tolariad.core.settings import values as units

# How long an orderly stop may take before the daemon gives up and leaves by itself. The service manager's own limit
# (TimeoutStopSec in systemd/tolariad@.service) must be longer, else its SIGKILL always wins; a test compares them.
STOP_BUDGET_S: Final = 75.0

Scalar: TypeAlias = str | units.Number64 | float | bool | None
PolicyName = Literal[
    "cosine", "host_cosine", "seed_warmup", "morpho_adaptive", "frozen", "constant", "linear", "step", "wsd"
]
OptimizerName = Literal["adamw", "cautious_adamw", "adam", "sgd", "rmsprop", "adagrad"]


class Performance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets the run is measured against."""

    epoch_boundary_ms: Annotated[
        units.Milliseconds, Meta(description="budget of an epoch boundary, validation apart")
    ] = 18.0
    training_degradation_percent: Annotated[units.Percent, Meta(description="throughput that may be lost")] = 7.5
    memory_overhead_percent: Annotated[units.Percent, Meta(description="memory that may be added")] = 8.5


class Rollback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two tiers of rollback."""

    fast_path_enabled: Annotated[bool, Meta(description="keep snapshots in memory and use them first")] = True
    fast_path_timeout_ms: Annotated[int, Meta(ge=1, le=1_000_000_000, description="budget of the fast tier")] = 500
    full_path_timeout_s: Annotated[
        units.PositiveSeconds, Meta(description="budget of the full tier, 1 B parameters")
    ] = 12.0
    checkpoint_cache_size: Annotated[int, Meta(ge=0, le=1024, description="snapshots kept in memory at most")] = 5
    rate_factor: Annotated[
        float, Meta(gt=0, le=1, description="a rollback by the detector multiplies every rate by it; 1: rates stay")
    ] = 1.0
    skip_batches: Annotated[
        bool, Meta(description="after a rollback by the detector, pass over the batches that led to it")
    ] = True


class LearningRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of every group that names none of its own."""

    enable_runtime_guards: Annotated[bool, Meta(description="compare the rates before every step")] = True
    circuit_breaker_threshold: Annotated[units.Positive, Meta(description="violations that open breaker `lr`")] = 3
    base_lr: Annotated[units.Rate, Meta(description="rate after the warm-up")] = 0.0001
    policy: Annotated[PolicyName, Meta(description="`cosine` is `host_cosine`")] = "cosine"
    warmup_epochs: Annotated[
        units.EpochCount, Meta(description="shortened to half the run where it is longer than the run")
    ] = 10
    warmup_factor: Annotated[float, Meta(gt=0, le=1, description="the warm-up starts at base_lr times this")] = 0.1
    warmup_type: Annotated[Literal["linear", "exponential", "cosine"], Meta(description="shape of the warm-up")] = (
        "linear"
    )
    min_lr: Annotated[units.Rate, Meta(description="where the decay ends")] = 1e-6
    max_lr: Annotated[units.PositiveRate | None, Meta(description="no order may set a rate above it")] = None
    max_order_factor: Annotated[
        float, Meta(ge=0, le=1_000_000_000, description="how many-fold one order may move a rate; 0 lifts the cap")
    ] = 10.0
    step_epochs: Annotated[units.Epochs, Meta(description="policy `step`: epochs of a stair")] = 30
    step_factor: Annotated[float, Meta(gt=0, le=1, description="policy `step`: what each stair multiplies by")] = 0.1
    decay_fraction: Annotated[
        float, Meta(ge=0, le=1, description="policy `wsd`: the share of the run over which it decays at last")
    ] = 0.2
    plateau_factor: Annotated[
        float, Meta(gt=0, lt=1, description="policy `morpho_adaptive`: what a plateau multiplies the rate by")
    ] = 0.1
    plateau_patience: Annotated[
        units.EpochCount, Meta(description="policy `morpho_adaptive`: epochs without a better metric that are borne")
    ] = 10
    plateau_threshold: Annotated[
        units.Fraction, Meta(description="policy `morpho_adaptive`: how much better counts, relative")
    ] = 1e-4
    plateau_cooldown: Annotated[
        units.EpochCount, Meta(description="policy `morpho_adaptive`: epochs after a reduction that do not count")
    ] = 0


class Integration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits towards the neighbouring subsystems."""

    tamiyo_timeout_s: Annotated[units.PositiveSeconds, Meta(description="hard limit of a strategy answer")] = 2.0
    oona_backpressure_limit: Annotated[
        int, Meta(ge=1, le=100_000_000, description="messages the telemetry queue holds")
    ] = 10000
    protobuf_version: Annotated[Literal[1], Meta(description="version of Leyline's messages")] = 1


class OptimizerGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters whose qualified name matches a pattern; the first group that matches takes them."""

    match: Annotated[str, Meta(min_length=1, description="fnmatch pattern, such as `*.bias`; must match something")]
    name: Annotated[str | None, Meta(description="name in events and commands; the pattern where absent")] = None
    base_lr: Annotated[units.Rate | None, Meta(description="instead of learning_rate.base_lr")] = None
    policy: Annotated[PolicyName | None, Meta(description="instead of learning_rate.policy")] = None
    warmup_epochs: Annotated[units.EpochCount | None, Meta(description="instead of learning_rate.warmup_epochs")] = None
    min_lr: Annotated[units.Rate | None, Meta(description="instead of learning_rate.min_lr")] = None
    max_lr: Annotated[units.PositiveRate | None, Meta(description="instead of learning_rate.max_lr")] = None
    weight_decay: Annotated[units.Coefficient | None, Meta(description="instead of the optimizer's")] = None
    momentum: Annotated[units.Fraction | None, Meta(description="instead of the optimizer's")] = None
    betas: Annotated[tuple[units.Fraction, units.Fraction] | None, Meta(description="instead of the optimizer's")] = (
        None
    )
    eps: Annotated[units.PositiveCoefficient | None, Meta(description="instead of the optimizer's")] = None
    max_scale: Annotated[units.MaskScale | None, Meta(description="instead of the optimizer's")] = None
    live_mean: Annotated[bool | None, Meta(description="instead of the optimizer's; for embeddings")] = None


class Optimizer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which optimizer, and its own arguments; an absent one keeps the optimizer's default. Rates are not here."""

    name: Annotated[OptimizerName, Meta(description="torch's class of that name, or tolariad's own")] = "adamw"
    weight_decay: Annotated[units.Coefficient | None, Meta(description="all")] = None
    eps: Annotated[units.PositiveCoefficient | None, Meta(description="all but sgd")] = None
    betas: Annotated[tuple[units.Fraction, units.Fraction] | None, Meta(description="the Adam family")] = None
    mask_eps: Annotated[
        units.MaskFloor | None, Meta(description="cautious_adamw: least mean of the mask that it is divided by")
    ] = None
    max_scale: Annotated[units.MaskScale | None, Meta(description="cautious_adamw: most the mask is scaled by")] = None
    live_mean: Annotated[
        bool | None, Meta(description="cautious_adamw: mean over coordinates whose gradient is not 0")
    ] = None
    cautious_weight_decay: Annotated[
        bool | None, Meta(description="cautious_adamw: decay only where parameter and momentum agree in sign")
    ] = None
    amsgrad: Annotated[bool | None, Meta(description="adam, adamw")] = None
    momentum: Annotated[units.Fraction | None, Meta(description="sgd, rmsprop")] = None
    dampening: Annotated[units.Coefficient | None, Meta(description="sgd")] = None
    nesterov: Annotated[bool | None, Meta(description="sgd")] = None
    alpha: Annotated[units.Fraction | None, Meta(description="rmsprop: smoothing")] = None
    centered: Annotated[bool | None, Meta(description="rmsprop")] = None
    lr_decay: Annotated[
        units.Coefficient | None, Meta(description="adagrad: refused unless 0, rates have one owner")
    ] = None
    initial_accumulator_value: Annotated[units.Coefficient | None, Meta(description="adagrad")] = None
    groups: Annotated[
        tuple[OptimizerGroup, ...], Meta(description="first match wins; the rest share the defaults")
    ] = ()


class JournalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the write-ahead journal is kept."""

    sync: Annotated[
        Literal["step", "batch", "auto"],
        Meta(description="when a step counts as durable: each by itself, within 50 ms, or by the step's length"),
    ] = "auto"
    segment_bytes: Annotated[int, Meta(ge=65_536, le=2**40, description="bytes of a journal segment")] = 100_000_000
    allow_filesystem: Annotated[
        bool, Meta(description="write on a network or stacked file system, whose promises nobody tested")
    ] = False


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When checkpoints are taken beside `checkpoint_interval_epochs`, and how long they stay."""

    interval_s: Annotated[units.PositiveSeconds, Meta(description="training time between two")] = 180.0
    min_gap_s: Annotated[units.Seconds, Meta(description="never two closer than this, unless ordered")] = 30.0
    keep_last: Annotated[units.Positive, Meta(description="newest good ones that are never deleted")] = 3
    keep_days: Annotated[units.Days, Meta(description="age at which others go")] = 7.0
    importance_days: Annotated[units.Days, Meta(description="age at which importance statistics go")] = 30.0
    throttle_mb_s: Annotated[
        units.MegabytesPerSecond | None,
        Meta(description="MB/s written beside training at most, so that steps are recorded as fast; null: no limit"),
    ] = 100.0


class Control(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may change the run through its socket; whoever can connect may read."""

    operators: Annotated[
        tuple[str, ...] | None,
        Meta(description="user names, uids or @groups; absent: the daemon's own user, root and the socket's group"),
    ] = None


class Breaker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One circuit breaker."""

    failures: Annotated[units.Positive, Meta(description="failures that open it")] = 3
    reset_s: Annotated[units.PositiveSeconds, Meta(description="seconds until it is tried again")] = 30.0
    probes: Annotated[units.Positive, Meta(description="successes that close it")] = 1


class Telemetry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where telemetry goes."""

    bus_url: Annotated[str | None, Meta(description="Redis stream server of the bus")] = None
    bus_password: Annotated[units.Secret | None, Meta(description="its password")] = None
    otlp_endpoint: Annotated[str | None, Meta(description="collector of traces")] = None


class Logging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon's own log, on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="lowest level written")] = "info"
    format: Annotated[Literal["auto", "text", "json"], Meta(description="auto: text on a terminal, JSON elsewhere")] = (
        "auto"
    )


class Metrics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Prometheus page."""

    listen: Annotated[str | None, Meta(description="host:port; absent: no listener")] = None


class Budgets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an overrun budget leads to."""

    act: Annotated[bool, Meta(description="false: overruns are recorded, features are not degraded")] = True


class Detect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The instability detector: it judges loss and gradient norm of every step before the update."""

    sync: Annotated[
        bool, Meta(description="on CUDA, wait for the loss before the update; without it no step is skipped there")
    ] = False
    act: Annotated[bool, Meta(description="false: what is found is recorded, and nothing is done")] = True
    skip: Annotated[
        bool, Meta(description="skip a non-finite or spiking batch; false: go back if non-finite, else only record it")
    ] = True
    rollback: Annotated[bool, Meta(description="go back by itself if the run diverges; false: only record it")] = True
    halt: Annotated[
        bool, Meta(description="halt if two rollbacks did not help; false: only if non-finite or exploding, else go on")
    ] = False
    chance: Annotated[
        units.Fraction | None,
        Meta(description="the accuracy of guessing, 1 / classes; a validation that falls back to it has collapsed"),
    ] = None


class Digest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of the parameters in the journal."""

    every_steps: Annotated[
        units.Positive | None, Meta(description="absent: as often as costs under 0.5 % of a step")
    ] = None


class GradNorm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gradient norm in step reports."""

    every: Annotated[
        units.Positive, Meta(description="steps between two measurements; in between it is recorded as -1")
    ] = 1


class Snapshots(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshots in memory, for the fast tier of rollback."""

    every: Annotated[units.Positive | None, Meta(description="steps between two; absent: one an epoch")] = None
    watch_steps: Annotated[
        units.Positive, Meta(description="healthy steps after which a snapshot, or a checkpoint, is promoted")
    ] = 32
    memory_gb: Annotated[
        units.Gigabytes | None, Meta(description="bytes they may take; absent: a share of what is free")
    ] = None


class Audit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audit of updates against the recorded rates."""

    every_steps: Annotated[units.Positive, Meta(description="steps between two audits of one sampled tensor")] = 1000


class Stop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ends the run before `epochs` are done; whichever comes first."""

    epochs: Annotated[units.Epochs | None, Meta(description="epochs; the schedule is still drawn for `epochs`")] = None
    steps: Annotated[
        units.Positive | None,
        Meta(description="optimizer updates; of data without a length the schedule is drawn for them"),
    ] = None
    hours: Annotated[
        units.Hours | None, Meta(description="hours of training, without pauses, restarts and steps run again")
    ] = None
    patience: Annotated[
        units.Epochs | None,
        Meta(description="epochs without a better validation, by the metric of `keep_best`, else by its loss"),
    ] = None


class Ema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exponential moving average of the weights: `average += (1 - decay) * (weights - average)` after every step.

    Training, hooks and the optimizer see the weights themselves; checkpoints hold both.
    """

    decay: Annotated[
        units.Fraction | None,
        Meta(
            description="weight of the past; absent: no average. It starts at the initial weights, validation measures "
            "it, together with the model's own buffers, which are not averaged"
        ),
    ] = None


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is told when a run ends or freezes."""

    webhook: Annotated[units.Secret | None, Meta(description="address that gets one JSON object by POST")] = None


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of `tolaria:`."""

    task: Annotated[
        str | None,
        Meta(description="`digits`, `chars`, `package.module:Name` or `./file.py:Name`, from this file's folder"),
    ] = None
    task_options: Annotated[dict[str, Scalar], Meta(description="passed to the task, such as `{model: cnn}`")] = {}
    epochs: Annotated[units.Epochs, Meta(description="epochs of the run, and of its schedule")] = 100
    batch_size: Annotated[units.Positive, Meta(description="samples in a batch")] = 64
    workers: Annotated[units.Processes, Meta(description="data loading processes")] = 0
    rng_seed: Annotated[units.Seed64 | None, Meta(description="absent: drawn and journaled")] = None
    device: Annotated[
        str, Meta(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$", description="auto: the first CUDA device, else the CPU")
    ] = "auto"
    torch_threads: Annotated[
        units.Threads | None, Meta(description="absent: all cores for a CPU run, all but one for a GPU run")
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Meta(
            description="of forward passes; parameters stay fp32; fp16 scales the loss and skips a step whose gradients overflow"
        ),
    ] = "fp32"
    accumulate: Annotated[
        units.Positive,
        Meta(description="micro-batches of `batch_size` in an update; an epoch's last takes what is left"),
    ] = 1
    compile: Annotated[
        bool, Meta(description="torch.compile the model's forward; a shape of batches is compiled once")
    ] = False
    determinism: Annotated[
        Literal["strict", "warn", "off"] | None, Meta(description="absent: strict on the CPU, warn on CUDA")
    ] = None
    trainer: Annotated[Literal["process", "thread"], Meta(description="where the training loop lives")] = "process"
    on_death: Annotated[
        Literal["fail", "skip_batch"], Meta(description="a batch the trainer dies of again and again: fail or skip it")
    ] = "fail"
    stop: Stop = Stop()
    learning_rate: LearningRate = LearningRate()
    optimizer: Optimizer = Optimizer()
    optimizers: Annotated[dict[str, Optimizer], Meta(description="several, by name, each like `optimizer`")] = {}
    checkpoint_interval_epochs: Annotated[units.Epochs, Meta(description="epochs between two checkpoints")] = 10
    checkpoint: Checkpoint = Checkpoint()
    checkpoint_storage_quota_gb: Annotated[units.Gigabytes, Meta(description="disk the checkpoints may take")] = 100.0
    keep_best: Annotated[
        units.MetricName | None,
        Meta(
            description="metric of the validation whose best epoch has a checkpoint that is never deleted: `loss`, "
            "`accuracy`, or `NAME:min`, `NAME:max`",
        ),
    ] = None
    journal: JournalSettings = JournalSettings()
    control: Control = Control()
    logging: Logging = Logging()
    metrics: Metrics = Metrics()
    telemetry: Telemetry = Telemetry()
    notify: Notify = Notify()
    performance: Performance = Performance()
    budgets: Budgets = Budgets()
    breakers: Annotated[dict[str, Breaker], Meta(description="of `lr`, or of a soft budget in time, by name")] = {}
    detect: Detect = Detect()
    digest: Digest = Digest()
    grad_norm: GradNorm = GradNorm()
    audit: Audit = Audit()
    rollback: Rollback = Rollback()
    snapshots: Snapshots = Snapshots()
    ema: Ema = Ema()
    integration: Integration = Integration()
    enable_morphogenetic: Annotated[bool, Meta(description="seeds and pruning may change the model")] = True
    strategy: Annotated[str | None, Meta(description="`package.module:Name`; absent: the default policy")] = None
    seeds: Annotated[dict[str, Scalar], Meta(description="options of the seed slots")] = {}
    prune: Annotated[dict[str, Scalar], Meta(description="options of pruning")] = {}
    pruning_phase_transition_epoch: Annotated[
        units.EpochCount, Meta(description="epoch at which pruning may begin")
    ] = 30
    pruning_checkpoint_interval: Annotated[int, Meta(ge=2, le=5, description="epochs between pruning checkpoints")] = 5
