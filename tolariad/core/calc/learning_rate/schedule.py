"""The schedule of a parameter group: its configuration in epochs, and the same in steps; a snapshot of rates.

Promises: plain values; the conversion is exact (an epoch is `steps_per_epoch` steps).
"""

from enum import Enum
from math import fsum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.calc.learning_rate.tabulated import Tabulated


class LRPolicy(Enum):
    """The curve after the warm-up. docs/learning-rate.md has the formulas, `policies` the classes."""

    HOST_COSINE = "host_cosine"
    SEED_WARMUP = "seed_warmup"
    MORPHO_ADAPTIVE = "morpho_adaptive"
    FROZEN = "frozen"
    CONSTANT = "constant"
    LINEAR = "linear"
    STEP = "step"
    WSD = "wsd"
    ONECYCLE = "onecycle"
    POLYNOMIAL = "polynomial"
    INVERSE_SQRT = "inverse_sqrt"
    COSINE_RESTARTS = "cosine_restarts"
    FUNCTION = "function"


# The curves of these policies have as many steps as the run was planned to have.
BY_LENGTH: Final = frozenset(
    {
        LRPolicy.HOST_COSINE,
        LRPolicy.LINEAR,
        LRPolicy.WSD,
        LRPolicy.ONECYCLE,
        LRPolicy.POLYNOMIAL,
        LRPolicy.COSINE_RESTARTS,
        LRPolicy.FUNCTION,
    }
)
# These begin at the first step: the warm-up is a part of their curve.
WHOLE_RUN: Final = frozenset({LRPolicy.ONECYCLE, LRPolicy.FUNCTION})
_SHORT_NAMES: Final = {"cosine": LRPolicy.HOST_COSINE}


def policy_named(name: str) -> LRPolicy:
    """Return the policy of that name in configurations and orders; FUNCTION for `file.py:function`.

    Raises ValueError.
    """
    return LRPolicy.FUNCTION if ":" in name else _SHORT_NAMES.get(name) or LRPolicy(name)


class Warmup(Enum):
    """How the rate rises from `base_lr * warmup_factor` to `base_lr`."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    COSINE = "cosine"


class PlateauRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When MORPHO_ADAPTIVE lowers a rate: names and defaults of torch's ReduceLROnPlateau."""

    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    cooldown: int = 0


class CurveRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of curves, with the names and defaults of torch's and transformers' schedulers.

    `power`: POLYNOMIAL. `num_cycles`: COSINE_RESTARTS. `timescale`: INVERSE_SQRT, in steps; None: its default. ONECYCLE
    rises for `pct_start` of the run from base_lr / `div_factor`, and falls to that / `final_div_factor`.
    """

    power: float = 1.0
    num_cycles: int = 1
    timescale: int | None = None
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4


class GroupConfig(Struct, frozen=True):
    """One parameter group: source 000. Rates are per step, lengths are in epochs. A missing `group_id` is generated.

    `min_lr` limits the decay, not the start of the warm-up; `max_lr` limits everything. STEP multiplies by
    `step_factor` every `step_epochs`. WSD decays over the last `decay_fraction` of the run. `plateau` is for
    MORPHO_ADAPTIVE, `rule` for the policies that it names, and `function` for FUNCTION: `file.py:function`, or
    its table. `warmup_steps`, if it is not None, takes the place of `warmup_epochs`.
    """

    name: str
    policy: LRPolicy
    base_lr: float
    warmup_epochs: int = 0
    min_lr: float = 1e-6
    max_lr: float | None = None
    warmup_factor: float = 0.1
    warmup_type: str = "linear"
    group_id: str | None = None
    step_epochs: int = 30
    step_factor: float = 0.1
    decay_fraction: float = 0.2
    plateau: PlateauRule = PlateauRule()
    rule: CurveRule = CurveRule()
    function: str | Tabulated = ""
    warmup_steps: int | None = None

    @property
    def warms_up_by_epochs(self) -> bool:
        """Return whether the length of the warm-up depends on that of an epoch."""
        return self.warmup_steps is None and self.warmup_epochs > 0


_NUMBERS: Final = ("base_lr", "min_lr", "max_lr", "warmup_factor", "step_factor", "decay_fraction")
# As in transformers, for INVERSE_SQRT without a warm-up.
_TIMESCALE: Final = 10_000


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group's policy in steps, counted from 1 after `start`, the step after which the group was added.

    `total_steps`: the last step of the curve; None if that is not known. Lengths: `warmup_steps`, `step_steps` (between
    two reductions of STEP) and `decay_steps` (of WSD). `function`: the table of FUNCTION.
    """

    policy: LRPolicy
    base_lr: float
    start: int = 0
    min_lr: float = 0.0
    max_lr: float | None = None
    total_steps: int | None = None
    warmup_steps: int = 0
    warmup_factor: float = 0.1
    warmup: Warmup = Warmup.LINEAR
    step_steps: int = 1
    step_factor: float = 0.1
    decay_steps: int = 0
    plateau: PlateauRule = PlateauRule()
    # A struct of more than 15 fields would be encoded in another form, which the hashes of states would show.
    rule: CurveRule = CurveRule()
    function: Tabulated | None = None

    @property
    def floor(self) -> float:
        """Return the rate at which a decay ends. With a base below `min_lr` there is nothing to decay."""
        return min(self.min_lr, self.base_lr)

    @property
    def inverse_sqrt_scale(self) -> int:
        """Return the timescale of INVERSE_SQRT in steps: as configured, else the warm-up, else 10 000."""
        return self.rule.timescale or self.warmup_steps or _TIMESCALE


def schedule_of(
    config: GroupConfig,
    *,
    steps_per_epoch: int,
    total_steps: int | None,
    start: int = 0,
    function: Tabulated | None = None,
) -> Schedule:
    """Convert the configuration to steps, from after step `start` to step `total_steps` of the run.

    `function`: the table of the configuration's function. Raises ValueError for an invalid value, naming the field.
    """
    config = _in_floats(config)
    _check(config)
    total_steps = curve_length(total_steps, start)
    warmup_steps = config.warmup_epochs * steps_per_epoch if config.warmup_steps is None else config.warmup_steps
    if config.policy in WHOLE_RUN:
        warmup_steps = 0
    if total_steps is not None:
        warmup_steps = shortened_warmup(warmup_steps, total_steps)
    return Schedule(
        policy=config.policy,
        base_lr=config.base_lr,
        start=start,
        min_lr=config.min_lr,
        max_lr=config.max_lr,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        warmup_factor=config.warmup_factor,
        warmup=Warmup(config.warmup_type),
        step_steps=config.step_epochs * steps_per_epoch,
        step_factor=config.step_factor,
        decay_steps=round(config.decay_fraction * (total_steps or 0)),
        plateau=config.plateau,
        rule=config.rule,
        function=function,
    )


def curve_length(total_steps: int | None, start: int) -> int | None:
    """Return how many steps a curve has that begins after step `start` of a run of `total_steps`."""
    return None if total_steps is None else max(1, total_steps - start)


def shortened_warmup(warmup_steps: int, total_steps: int) -> int:
    """Shorten a warm-up that is as long as the run to half of the run, so that the base rate is reached.

    Half a step is rounded up. An epoch that ends in the first half of the run ends within the warm-up, however few
    steps it has.
    """
    if warmup_steps < total_steps:
        return warmup_steps
    return (total_steps + 1) // 2 if total_steps > 1 else 0


def under_policy(schedule: Schedule, policy: LRPolicy, function: Tabulated | None = None) -> Schedule:
    """Return the schedule under the policy of an order. A constant policy has no warm-up."""
    warmup_steps = 0 if policy is LRPolicy.CONSTANT or policy in WHOLE_RUN else schedule.warmup_steps
    return replace(schedule, policy=policy, warmup_steps=warmup_steps, function=function)


def _in_floats(config: GroupConfig) -> GroupConfig:
    """Convert all numbers to Python floats: a tensor's value could be changed later by its owner, unnoticed."""
    changed = {}
    for field in _NUMBERS:
        value = getattr(config, field)
        if value is None or type(value) is float:
            continue
        try:
            # `fsum` accepts anything with __float__ and rejects text.
            changed[field] = fsum((value,))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"group {config.name}: {field}={value!r} is not a number") from error
    return replace(config, **changed) if changed else config


def _check(config: GroupConfig) -> None:
    wrong = {
        "base_lr": not 0.0 <= config.base_lr < float("inf"),
        "min_lr": not 0.0 <= config.min_lr < float("inf"),
        "max_lr": config.max_lr is not None and not config.max_lr >= config.base_lr,
        "warmup_epochs": config.warmup_epochs < 0,
        "warmup_steps": config.warmup_steps is not None and config.warmup_steps < 0,
        "warmup_factor": not 0.0 < config.warmup_factor <= 1.0,
        "warmup_type": config.warmup_type not in {one.value for one in Warmup},
        "step_epochs": config.step_epochs < 1,
        "step_factor": not 0.0 < config.step_factor <= 1.0,
        "decay_fraction": not 0.0 <= config.decay_fraction <= 1.0,
        "rule": not _is_possible(config.rule),
        "function": (config.policy is LRPolicy.FUNCTION) != bool(config.function),
        "plateau": not 0.0 < config.plateau.factor < 1.0 or config.plateau.patience < 0 or config.plateau.cooldown < 0,
    }
    for field, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"group {config.name}: {field}={getattr(config, field)!r} makes no schedule")


def _is_possible(rule: CurveRule) -> bool:
    factors = (rule.div_factor, rule.final_div_factor)
    return (
        0.0 < rule.power < float("inf")
        and rule.num_cycles >= 1
        and (rule.timescale is None or rule.timescale >= 1)
        and 0.0 <= rule.pct_start <= 1.0
        and all(1.0 <= factor < float("inf") for factor in factors)
    )


class LRSnapshot(Struct, frozen=True):
    """The rates of update `step`. `checksums`: a fingerprint of each group over its id, its parameters and its rate.

    `timestamp` is wall time in seconds.
    """

    epoch: int
    step: int
    group_lrs: dict[str, float]
    checksums: dict[str, str]
    timestamp: float


class LRIntegrityError(Exception):
    """Code other than the rate controller changed a learning rate or the parameters that it applies to."""
