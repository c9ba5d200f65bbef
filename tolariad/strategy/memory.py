"""The numbers of the default policy, and what it remembers from one packet to the next.

Promises: the state has a bounded size, whatever the packets hold: at most 100 slots and 8 gradient norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.leyline import SeedOperation as Operation
from tolariad.strategy.reading import Seen, SeenSeed

# The next operation for a seed of each stage in which it grows.
NEXT: Final[Mapping[int, int]] = {
    Stage.SEED_STAGE_GERMINATED: Operation.SEED_OP_START_TRAINING,
    Stage.SEED_STAGE_TRAINING: Operation.SEED_OP_START_GRAFTING,
    Stage.SEED_STAGE_BLENDING: Operation.SEED_OP_STABILIZE,
    Stage.SEED_STAGE_SHADOWING: Operation.SEED_OP_EVALUATE,
    Stage.SEED_STAGE_PROBATIONARY: Operation.SEED_OP_FOSSILIZE,
}
# The stages in which the seed's output is part of the model's.
_HEARD: Final = frozenset(
    {Stage.SEED_STAGE_BLENDING, Stage.SEED_STAGE_SHADOWING, Stage.SEED_STAGE_PROBATIONARY},
)
_NORMS_KEPT: Final = 8


class PolicyLimits(Struct, frozen=True, kw_only=True):
    """Every number of the policy. Epochs, if not said otherwise; a share is of the loss compared with (`gain`)."""

    # Growing.
    blueprints: tuple[str, ...] = ("bottleneck", "conv", "low_rank")
    patience: int = 3  # without a gain, until the loss is on a plateau
    gain: float = 0.01  # share by which a loss must fall to count as a gain
    growing_max: int = 1  # seeds that grow at the same time
    epochs_left_min: int = 8  # a seed needs them to become part of the model
    pause: int = 3  # between two germinations, two lower rates, two rollbacks
    # Seeds that grow.
    training: int = 2  # at least, before a seed is blended in
    settling: int = 1  # at least, in SHADOWING and PROBATIONARY
    trial: int = 5  # at most, in PROBATIONARY, without being worth it
    stuck: int = 10  # at most, in a stage whose gate refuses
    worth: float = 0.001  # share by which the loss must be below that before the seed
    worse: float = 0.10  # share above that loss, from which it is a regression
    in_a_row: int = 2  # regressions, or diverged losses, before something follows
    violations_max: int = 3  # of the gradients' isolation
    # The run.
    diverged: float = 3.0  # share above the best loss, from which it has diverged
    skipped_share: float = 0.05  # of the updates of an epoch
    skipped_min: int = 3  # fewer skips in an epoch are no trouble, whatever their share
    findings: int = 3  # of the detector, in an epoch
    norm_factor: float = 10.0  # times the median of the gradient norms before
    lower_by: float = 0.5
    rate_floor: float = 1 / 16  # of the highest rate seen
    rollbacks_max: int = 2  # of a whole run
    commands_max: int = 4


class SlotMemory(Struct, frozen=True, kw_only=True):
    """The policy's memory of one slot.

    * `since`: the epoch in which its stage was first seen.
    * `before`: the best loss before its seed; None without one.
    * `worse`: the number of regressions in a row.
    * `tried`: the number of germinations that were ordered here.
    * `refused`: how many germinations in a row came to nothing.
    * `is_asked`: the last packet led to a germination here.
    """

    stage: int
    since: int
    before: float | None = None
    worse: int = 0
    tried: int = 0
    refused: int = 0
    is_asked: bool = False


class PolicyState(Struct, frozen=True, kw_only=True):
    """The policy's memory: at most 100 slots and 8 norms. Epochs are 0 if there was none.

    * `first`: the first finite loss.
    * `best`, `best_epoch`: the lowest loss and its epoch; only a loss that was a gain counts.
    * `grown_in`: the depth and key of the slot of the last germination. The next one is in the slot after it.
    """

    first: float | None = None
    best: float | None = None
    best_epoch: int = 0
    diverging: int = 0
    norms: tuple[float, ...] = ()
    rate_highest: float = 0.0
    lowered_epoch: int = 0
    rolled_epoch: int = 0
    grown_epoch: int = 0
    grown_in: tuple[int, str] = (-1, "")
    own_rollbacks: int = 0
    slots: dict[str, SlotMemory] = {}


def noted(state: PolicyState, seen: Seen, limits: PolicyLimits) -> PolicyState:
    """Return the state with this epoch's numbers."""
    first, best, best_epoch, diverging = state.first, state.best, state.best_epoch, 0
    if not seen.has_loss:
        diverging = state.diverging + 1
    elif best is None or first is None:
        first, best, best_epoch = seen.loss, seen.loss, seen.epoch
    elif gain(seen.loss, best, first) > limits.gain:
        best, best_epoch = seen.loss, seen.epoch
    elif gain(seen.loss, best, first) < -limits.diverged:
        diverging = state.diverging + 1
    norms = state.norms
    if seen.norm is not None and math.isfinite(seen.norm):
        norms = (*norms, seen.norm)[-_NORMS_KEPT:]
    state = replace(state, first=first, best=best)
    return replace(
        state,
        best_epoch=best_epoch,
        diverging=min(diverging, limits.in_a_row),
        norms=norms,
        rate_highest=max(state.rate_highest, seen.rate or 0.0),
        own_rollbacks=state.own_rollbacks if seen.own_rollbacks is None else seen.own_rollbacks,
        slots={seed.key: _remembered(state, seed, seen, limits) for seed in seen.seeds},
    )


def _remembered(state: PolicyState, seed: SeenSeed, seen: Seen, limits: PolicyLimits) -> SlotMemory:
    slot, best = state.slots.get(seed.key), state.best
    if slot is None:
        slot = SlotMemory(stage=seed.stage, since=seen.epoch, before=best if seed.stage in NEXT else None)
    elif slot.stage != seed.stage:
        # A slot that skipped DORMANT in one epoch, or whose seed an operator grew, has no loss to compare with yet.
        before = slot.before if slot.before is not None or seed.stage not in NEXT else best
        slot = replace(slot, stage=seed.stage, since=seen.epoch, before=before, worse=0, refused=0)
    elif slot.is_asked:
        slot = replace(slot, refused=slot.refused + 1)
    if seed.stage == Stage.SEED_STAGE_DORMANT:
        return replace(slot, before=None, is_asked=False)
    share = gain_of(slot, state, seen)
    is_worse = share is not None and share < -limits.worse
    worse = min(slot.worse + 1, limits.in_a_row) if is_worse and seed.stage in _HEARD else 0
    return replace(slot, worse=worse, is_asked=False)


def gain(loss: float, other: float, first: float) -> float:
    """Return by which share `loss` is below `other`.

    The share is of `other` or, if the loss has come close to zero, of a tenth of its way there: noise is no gain.
    """
    scale = max(abs(other), 0.1 * (first - other))
    return (other - loss) / scale if scale > 0.0 else 0.0


def gain_of(slot: SlotMemory, state: PolicyState, seen: Seen) -> float | None:
    """Return the gain over the loss before this seed, or None if one of the two is not known."""
    if slot.before is None or state.first is None or not seen.has_loss:
        return None
    return gain(seen.loss, slot.before, state.first)


def is_due(last: int, epoch: int, pause: int) -> bool:
    """Return whether the pause after epoch `last` is over; 0: there was none."""
    return last == 0 or epoch >= last + pause


def shown(loss: float | None) -> str:
    """Return a loss as text for a reason."""
    return "none" if loss is None else f"{loss:.6g}"
