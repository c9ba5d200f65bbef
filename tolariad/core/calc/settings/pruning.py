"""The configuration's part about pruning: `prune`, with every threshold of the source documents.

Promises: pure values; `rules.py` has the relations between them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tolariad.core.calc.bounds import COUNT_MAX
from tolariad.core.calc.settings import values as units

Share = Annotated[float, Meta(ge=0, le=1)]
Steps = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Factor = Annotated[float, Meta(ge=1, le=1_000_000)]


class ShareFrom(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of the parameters that holds from an epoch on, until the next entry's epoch."""

    epoch: Annotated[units.EpochCount, Meta(description="first epoch for which the share holds")]
    share: Annotated[Share, Meta(description="share of the parameters that the model had before any pruning")]


class PruneSafety(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The window after masks were applied: limits, and the reaction if one is exceeded."""

    grace_steps: Annotated[Steps, Meta(description="steps after the masks that are not judged")] = 20
    window_steps: Annotated[units.Positive, Meta(description="steps that are compared with as many before")] = 200
    accuracy_drop: Annotated[
        Share, Meta(description="greatest drop of the accuracy, or rise of the loss of what it was: a rollback follows")
    ] = 0.02
    spread_factor: Annotated[
        units.Coefficient,
        Meta(description="the drop may be this times the spread of repeated validations, if that is more"),
    ] = 3.0
    gradient_norm: Annotated[Factor, Meta(description="greatest gradient norm, relative: a rollback follows")] = 5.0
    memory: Annotated[Share, Meta(description="greatest share of the memory that may be in use")] = 0.90
    memory_action: Annotated[
        Literal["release", "rollback"], Meta(description="release: training continues without the masks")
    ] = "release"
    speed: Annotated[Share, Meta(description="least speed of training, relative")] = 0.90
    speed_action: Annotated[Literal["release", "rollback"], Meta(description="as memory_action")] = "release"
    failures: Annotated[units.Positive, Meta(description="failed cycles in a row after which pruning stops")] = 3


class PruneValidation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The validation of masks on a copy of the model, before they may be applied."""

    accuracy_retention: Annotated[
        Share,
        Meta(description="least accuracy, relative, or 1 - the relative rise of the loss; below it masks are refused"),
    ] = 0.95
    gradient_ratio: Annotated[
        Factor, Meta(description="greatest gradient norm, relative; above it the masks are refused")
    ] = 10.0
    layer_share: Annotated[Share, Meta(description="greatest share of a layer's channels that may be pruned")] = 0.5
    fragmentation: Annotated[
        Share, Meta(description="greatest share of the device's reserved memory that is fragmented")
    ] = 0.8
    timeout_s: Annotated[units.PositiveSeconds, Meta(description="time limit")] = 60.0


class Prune(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Structured pruning. Budgets and caps are shares of the parameters that the model had before any pruning.

    The phase begins after `pruning_phase_transition_epoch`; a cycle is due every `pruning_checkpoint_interval` epochs.
    """

    enabled: Annotated[bool, Meta(description="analyse, and later prune, by the schedule")] = False
    estimator: Annotated[
        Literal["fisher", "magnitude", "moments"],
        Meta(description="how the importance of a channel is estimated"),
    ] = "fisher"
    budgets: Annotated[tuple[ShareFrom, ...], Meta(description="share that one cycle may prune")] = (
        ShareFrom(epoch=0, share=0.01),
        ShareFrom(epoch=50, share=0.03),
        ShareFrom(epoch=100, share=0.05),
    )
    caps: Annotated[tuple[ShareFrom, ...], Meta(description="share that all cycles together may prune")] = (
        ShareFrom(epoch=0, share=0.05),
        ShareFrom(epoch=61, share=0.10),
        ShareFrom(epoch=91, share=0.20),
    )
    absolute_cap: Annotated[Share, Meta(description="as `caps`, for every epoch")] = 0.5
    last_epoch: Annotated[units.EpochCount, Meta(description="last epoch in which channels are pruned")] = 120
    min_channels: Annotated[units.Positive, Meta(description="channels that every layer keeps")] = 16
    min_heads: Annotated[units.Positive, Meta(description="heads that every attention layer keeps")] = 2
    min_layer_share: Annotated[Share, Meta(description="share of its channels that every layer keeps")] = 0.5
    max_layer_share_per_cycle: Annotated[
        Share, Meta(description="greatest share of a layer's channels that one cycle may prune")
    ] = 0.15
    min_samples: Annotated[units.Positive, Meta(description="samples that an importance needs")] = 1000
    analysis_priority: Annotated[
        Literal["idle", "normal"],
        Meta(description="if training uses all cores, idle: an analysis gives way to it; normal: it does not"),
    ] = "idle"
    analysis_timeout_s: Annotated[units.PositiveSeconds, Meta(description="time limit of an analysis")] = 300.0
    compact_every: Annotated[
        int,
        Meta(ge=0, le=1000, description="sets of masks after which the channels are removed; 0: only on order"),
    ] = 0
    safety: PruneSafety = PruneSafety()
    validation: PruneValidation = PruneValidation()
