"""The configuration's part about seeds: `seeds`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tolariad.core.calc.seeds.gates import GateLimits
from tolariad.core.calc.settings import values as units
from tolariad.core.calc.settings.optimization import Optimizer


class Conflict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradients that disagree on parameters which host and seeds, or several seeds, share."""

    method: Annotated[
        str,
        Meta(
            pattern=r"^(pcgrad|average|priority|torchjd:[A-Za-z0-9]+)$",
            description="`pcgrad`, `average`, `priority`, or `torchjd:NAME`, an aggregator of TorchJD (extra "
            "`aggregators`)",
        ),
    ] = "pcgrad"
    threshold: Annotated[
        float,
        Meta(
            ge=-1,
            le=0,
            description="two gradients conflict if their cosine is below this; the default almost never holds, 0 is "
            "the usual one for pcgrad",
        ),
    ] = -0.5
    every: Annotated[
        units.Positive,
        Meta(description="steps between two checks for conflicts; each costs a backward pass for every loss"),
    ] = 100


class SeedSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slots for seeds, and how seeds are trained, blended in and judged."""

    slots: Annotated[
        dict[str, str],
        Meta(description="slots to attach, beside those of the model: `{slot: qualified name of a module}`"),
    ] = {}
    blueprints: Annotated[
        tuple[str, ...],
        Meta(
            description="blueprints that the default policy tries, in this order for each slot: names, "
            "`package.module:Name` or `./file.py:Name`; an order may name these and the installed ones"
        ),
    ] = ("bottleneck", "conv", "low_rank")
    optimizer: Annotated[Optimizer | None, Meta(description="optimizer of every seed; absent: of the host's kind")] = (
        None
    )
    lr: Annotated[
        units.PositiveRate | None, Meta(description="base rate of a seed; absent: a tenth of the host's base rate")
    ] = None
    warmup_epochs: Annotated[
        units.EpochCount,
        Meta(
            description="epochs from the germination over which the rate of a seed rises from a hundredth of its base "
            "rate to it; at most half of what is left of the run"
        ),
    ] = 10
    evaluate: Annotated[
        Literal["frozen", "train"],
        Meta(description="whether a seed in PROBATIONARY, whose effect is judged, goes on learning"),
    ] = "frozen"
    fossil: Annotated[
        Literal["frozen", "train"],
        Meta(description="whether a seed in FOSSILIZED, a permanent part of the model, goes on learning"),
    ] = "frozen"
    blend_steps: Annotated[units.Positive, Meta(description="updates over which a seed is blended in")] = 100
    embargo_epochs: Annotated[
        units.EpochCount, Meta(description="epochs after a cull in which the slot stays empty")
    ] = 5
    max_gradient_norm: Annotated[
        units.Coefficient,
        Meta(
            description="the gradients of each seed, and those of the host in a step with auxiliary losses, are "
            "clipped to this norm; 0: not clipped"
        ),
    ] = 10.0
    stage_weights: Annotated[
        dict[str, units.Coefficient],
        Meta(
            description="weights of auxiliary losses by stage that differ from the usual ones, such as "
            "`{PROBATIONARY: 1.0}` to fine-tune a seed that is judged. In BLENDING, alpha multiplies the weight"
        ),
    ] = {}
    conflict: Conflict = Conflict()
    gates: GateLimits = GateLimits()
