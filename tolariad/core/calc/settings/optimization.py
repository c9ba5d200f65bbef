"""The configuration's part about learning rates and optimizers: `learning_rate`, `optimizer`, `optimizers`, groups."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from msgspec import Meta, Struct

from tolariad.core.calc.settings import values as units

PolicyName = Literal[
    "cosine",
    "host_cosine",
    "seed_warmup",
    "morpho_adaptive",
    "frozen",
    "constant",
    "linear",
    "step",
    "wsd",
    "onecycle",
    "polynomial",
    "inverse_sqrt",
    "cosine_restarts",
]
POLICY_NAMES: Final[tuple[str, ...]] = get_args(PolicyName)
FUNCTION_FORM: Final = "file.py:function"
# The hash at the end is the beginning of the file's SHA-256. A resolved configuration has it, so that a change shows.
_FUNCTION: Final = r"[^:]+\.py:[A-Za-z_]\w*(@[0-9a-f]{16})?"
# Text, because msgspec takes no union of listed words with other text.
PolicyOrFunction = Annotated[
    str,
    Meta(
        pattern=rf"^({'|'.join(POLICY_NAMES)}|{_FUNCTION})$",
        extra={"choices": (*POLICY_NAMES, FUNCTION_FORM)},
        extra_json_schema={"anyOf": [{"enum": list(POLICY_NAMES)}, {"pattern": f"^{_FUNCTION}$"}]},
    ),
]
OptimizerName = Literal["adamw", "cautious_adamw", "adam", "sgd", "rmsprop", "adagrad"]


class LearningRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The learning rate of every parameter group that does not set its own."""

    enable_runtime_guards: Annotated[
        bool, Meta(description="before every step, check that the optimizer's rates are the scheduled ones")
    ] = True
    circuit_breaker_threshold: Annotated[
        units.Positive, Meta(description="violations in a row that open the breaker `lr`")
    ] = 3
    base_lr: Annotated[units.Rate, Meta(description="rate after the warm-up")] = 0.0001
    policy: Annotated[
        PolicyOrFunction, Meta(description="schedule, see learning-rate.md; `cosine` means `host_cosine`")
    ] = "cosine"
    warmup_epochs: Annotated[
        units.EpochCount,
        Meta(
            description="epochs of warm-up; absent: 10, but at most a tenth of the run, rounded up. One that does not "
            "fit is shortened to half the run"
        ),
    ] = 10
    warmup_steps: Annotated[units.StepCount | None, Meta(description="steps of warm-up, in place of warmup_epochs")] = (
        None
    )
    warmup_factor: Annotated[float, Meta(gt=0, le=1, description="the warm-up starts at base_lr times this")] = 0.1
    warmup_type: Annotated[Literal["linear", "exponential", "cosine"], Meta(description="shape of the warm-up")] = (
        "linear"
    )
    min_lr: Annotated[units.Rate, Meta(description="rate at the end of the decay")] = 1e-6
    max_lr: Annotated[
        units.PositiveRate | None, Meta(description="greatest rate that an order may set; absent: no limit")
    ] = None
    max_order_factor: Annotated[
        float,
        Meta(ge=0, le=1_000_000_000, description="greatest factor by which one order may change a rate; 0: no limit"),
    ] = 10.0
    step_epochs: Annotated[units.Epochs, Meta(description="policy `step`: epochs between two reductions")] = 30
    step_factor: Annotated[
        float, Meta(gt=0, le=1, description="policy `step`: each reduction multiplies the rate by this")
    ] = 0.1
    decay_fraction: Annotated[
        float, Meta(ge=0, le=1, description="policy `wsd`: share of the run, at its end, over which the rate decays")
    ] = 0.2
    power: Annotated[
        float, Meta(gt=0, le=1000, description="policy `polynomial`: power of the straight line to min_lr")
    ] = 1.0
    num_cycles: Annotated[
        units.Positive, Meta(description="policy `cosine_restarts`: halves of a cosine in the run; 1: no restart")
    ] = 1
    timescale: Annotated[
        units.Positive | None,
        Meta(description="policy `inverse_sqrt`: steps of its unit of time; absent: the warm-up, without one 10000"),
    ] = None
    pct_start: Annotated[
        float, Meta(ge=0, le=1, description="policy `onecycle`: share of the run in which the rate rises to base_lr")
    ] = 0.3
    div_factor: Annotated[
        float, Meta(ge=1, le=1_000_000_000, description="policy `onecycle`: it begins at base_lr divided by this")
    ] = 25.0
    final_div_factor: Annotated[
        float, Meta(ge=1, le=1_000_000_000, description="policy `onecycle`: it ends at its beginning divided by this")
    ] = 1e4
    plateau_factor: Annotated[
        float, Meta(gt=0, lt=1, description="policy `morpho_adaptive`: a plateau multiplies the rate by this")
    ] = 0.1
    plateau_patience: Annotated[
        units.EpochCount,
        Meta(description="policy `morpho_adaptive`: epochs, or validations, without improvement before a reduction"),
    ] = 10
    plateau_threshold: Annotated[
        units.Fraction, Meta(description="policy `morpho_adaptive`: least relative improvement of the metric")
    ] = 1e-4
    plateau_cooldown: Annotated[
        units.EpochCount,
        Meta(description="policy `morpho_adaptive`: epochs, or validations, after a reduction that are not counted"),
    ] = 0


class OptimizerGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters whose qualified name matches a pattern. The first group that matches a parameter takes it."""

    match: Annotated[
        str,
        Meta(min_length=1, description="fnmatch pattern, such as `*.bias`; it must match at least one parameter"),
    ]
    name: Annotated[str | None, Meta(description="name in events and commands; absent: the pattern")] = None
    base_lr: Annotated[units.Rate | None, Meta(description="instead of learning_rate.base_lr")] = None
    policy: Annotated[PolicyOrFunction | None, Meta(description="instead of learning_rate.policy")] = None
    warmup_epochs: Annotated[units.EpochCount | None, Meta(description="instead of learning_rate.warmup_epochs")] = None
    warmup_steps: Annotated[units.StepCount | None, Meta(description="instead of learning_rate.warmup_steps")] = None
    min_lr: Annotated[units.Rate | None, Meta(description="instead of learning_rate.min_lr")] = None
    max_lr: Annotated[units.PositiveRate | None, Meta(description="instead of learning_rate.max_lr")] = None
    weight_decay: Annotated[units.Coefficient | None, Meta(description="instead of the optimizer's")] = None
    momentum: Annotated[units.Fraction | None, Meta(description="instead of the optimizer's")] = None
    betas: Annotated[tuple[units.Fraction, units.Fraction] | None, Meta(description="instead of the optimizer's")] = (
        None
    )
    eps: Annotated[units.PositiveCoefficient | None, Meta(description="instead of the optimizer's")] = None
    max_scale: Annotated[units.MaskScale | None, Meta(description="instead of the optimizer's")] = None
    live_mean: Annotated[bool | None, Meta(description="instead of the optimizer's; of use for embeddings")] = None


class Optimizer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optimizer and its arguments, each with the optimizers that have it. An absent one keeps its default.

    Rates are in `learning_rate`.
    """

    name: Annotated[OptimizerName, Meta(description="the class of torch, or `cautious_adamw` of tolariad")] = "adamw"
    weight_decay: Annotated[units.Coefficient | None, Meta(description="all optimizers")] = None
    eps: Annotated[units.PositiveCoefficient | None, Meta(description="all but sgd and adagrad")] = None
    betas: Annotated[tuple[units.Fraction, units.Fraction] | None, Meta(description="adam, adamw, cautious_adamw")] = (
        None
    )
    mask_eps: Annotated[
        units.MaskFloor | None,
        Meta(description="cautious_adamw: lower bound of the mask's mean, which divides the mask"),
    ] = None
    max_scale: Annotated[
        units.MaskScale | None, Meta(description="cautious_adamw: greatest factor that the mask is scaled by")
    ] = None
    live_mean: Annotated[
        bool | None, Meta(description="cautious_adamw: take the mean over elements whose gradient is not 0")
    ] = None
    cautious_weight_decay: Annotated[
        bool | None, Meta(description="cautious_adamw: decay only elements whose parameter and momentum agree in sign")
    ] = None
    amsgrad: Annotated[bool | None, Meta(description="adam, adamw")] = None
    momentum: Annotated[units.Fraction | None, Meta(description="sgd, rmsprop")] = None
    dampening: Annotated[units.Coefficient | None, Meta(description="sgd")] = None
    nesterov: Annotated[bool | None, Meta(description="sgd")] = None
    alpha: Annotated[units.Fraction | None, Meta(description="rmsprop: smoothing")] = None
    centered: Annotated[bool | None, Meta(description="rmsprop")] = None
    lr_decay: Annotated[
        units.Coefficient | None, Meta(description="adagrad: must be 0; use learning_rate.policy instead")
    ] = None
    initial_accumulator_value: Annotated[units.Coefficient | None, Meta(description="adagrad")] = None
    groups: Annotated[
        tuple[OptimizerGroup, ...],
        Meta(description="the first match takes a parameter; all others form the group `default`"),
    ] = ()


class PartOptimizer(Optimizer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optimizer of a part of the model: all keys of `optimizer`, and which parameters it has, at which rates."""

    match: Annotated[
        str | tuple[str, ...] | None,
        Meta(
            description="fnmatch patterns of the part's parameters, one or a list; absent: those of the submodule with "
            "the optimizer's name"
        ),
    ] = None
    base_lr: Annotated[units.Rate | None, Meta(description="instead of learning_rate.base_lr")] = None
    policy: Annotated[PolicyName | None, Meta(description="instead of learning_rate.policy")] = None
    warmup_epochs: Annotated[units.EpochCount | None, Meta(description="instead of learning_rate.warmup_epochs")] = None
    warmup_steps: Annotated[units.StepCount | None, Meta(description="instead of learning_rate.warmup_steps")] = None
    min_lr: Annotated[units.Rate | None, Meta(description="instead of learning_rate.min_lr")] = None
    max_lr: Annotated[units.PositiveRate | None, Meta(description="instead of learning_rate.max_lr")] = None
