"""The rules for seeds of the default policy: remove what harms, advance what is ready, grow on a plateau.

Promises: a slot under embargo, in quarantine or fossilised is not touched. A slot in which every blueprint was refused
is not asked again. A regression removes one seed in an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from tolariad.core.calc.text.phrases import counted
from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.leyline import SeedOperation as Operation
from tolariad.strategy.memory import NEXT, PolicyLimits, PolicyState, SlotMemory, gain_of, is_due, shown
from tolariad.strategy.reading import Seen, SeenSeed
from tolariad.strategy.wishes import MoveSeed

# The stage to which an operation moves a seed. SEED_OP_FINE_TUNE is not an operation of this version.
STAGE_AFTER: Final[Mapping[int, int]] = MappingProxyType(
    {
        Operation.SEED_OP_GERMINATE: Stage.SEED_STAGE_GERMINATED,
        Operation.SEED_OP_START_TRAINING: Stage.SEED_STAGE_TRAINING,
        Operation.SEED_OP_START_GRAFTING: Stage.SEED_STAGE_BLENDING,
        Operation.SEED_OP_STABILIZE: Stage.SEED_STAGE_SHADOWING,
        Operation.SEED_OP_EVALUATE: Stage.SEED_STAGE_PROBATIONARY,
        Operation.SEED_OP_FOSSILIZE: Stage.SEED_STAGE_FOSSILIZED,
        Operation.SEED_OP_CULL: Stage.SEED_STAGE_CULLED,
        Operation.SEED_OP_CANCEL: Stage.SEED_STAGE_CULLED,
    }
)


def culls(state: PolicyState, seen: Seen, limits: PolicyLimits) -> Iterator[MoveSeed]:
    """Yield the seeds to remove. A regression removes one seed in an epoch: the one that moved last."""
    grows = [(seed, state.slots[seed.key]) for seed in seen.seeds if seed.stage in NEXT]
    worse = [(slot.since, seed.depth, seed.key) for seed, slot in grows if slot.worse >= limits.in_a_row]
    blamed = max(worse)[2] if worse else None
    for seed, _ in grows:
        found = _fault(seed, state, seen, limits, is_blamed=seed.key == blamed)
        if found is not None:
            yield MoveSeed(rule=found[0], reason=found[1], seed=seed.name, operation=Operation.SEED_OP_CULL)


def _fault(
    seed: SeenSeed, state: PolicyState, seen: Seen, limits: PolicyLimits, *, is_blamed: bool
) -> tuple[str, str] | None:
    """Return the rule that removes this seed, and the reason."""
    slot = state.slots[seed.key]
    age = seen.epoch - slot.since
    if seed.is_sick or seed.violations >= limits.violations_max:
        return "sickness", f"its numbers are not finite, it is in quarantine, or {seed.violations:g} violations"
    if is_blamed:
        return "regression", f"the loss is {seen.loss:.6g}, before the seed it was {shown(slot.before)}"
    is_trial = seed.stage == Stage.SEED_STAGE_PROBATIONARY
    if is_trial and age >= limits.trial and not _is_worth_it(slot, state, seen, limits):
        return (
            "trial",
            f"after {counted(age, 'epoch')} the loss is {seen.loss:.6g}, before the seed {shown(slot.before)}",
        )
    if age >= limits.stuck and seed.stage != Stage.SEED_STAGE_BLENDING:
        return "stuck", f"it has been in its stage for {counted(age, 'epoch')}: its gate refuses"
    return None


def _is_worth_it(slot: SlotMemory, state: PolicyState, seen: Seen, limits: PolicyLimits) -> bool:
    share = gain_of(slot, state, seen)
    return share is None or share > limits.worth


def advances(state: PolicyState, seen: Seen, limits: PolicyLimits) -> Iterator[MoveSeed]:
    """Yield the seeds that are due for their next stage. The run's own gates decide whether they get there."""
    for seed in seen.seeds:
        if seed.stage not in NEXT:
            continue
        age = seen.epoch - state.slots[seed.key].since
        if not seed.is_sick and _is_ready(seed, state, seen, limits):
            stage = Stage.Name(seed.stage).removeprefix("SEED_STAGE_")
            reason = f"{counted(age, 'epoch')} in {stage}, loss {seen.loss:.6g}, alpha {seed.alpha:.6g}"
            yield MoveSeed(rule="gate", reason=reason, seed=seed.name, operation=NEXT[seed.stage])


def _is_ready(seed: SeenSeed, state: PolicyState, seen: Seen, limits: PolicyLimits) -> bool:
    slot = state.slots[seed.key]
    age = seen.epoch - slot.since
    if slot.worse:
        return False
    if seed.stage == Stage.SEED_STAGE_TRAINING:
        return age >= limits.training and seed.violations == 0
    if seed.stage == Stage.SEED_STAGE_BLENDING:
        return seed.alpha >= 1.0
    if seed.stage == Stage.SEED_STAGE_PROBATIONARY:
        return age >= limits.settling and _is_worth_it(slot, state, seen, limits)
    return age >= (limits.settling if seed.stage == Stage.SEED_STAGE_SHADOWING else 0)


def _slot_to_grow_in(state: PolicyState, seen: Seen, limits: PolicyLimits) -> SeenSeed | None:
    """Return the slot for a new seed, or None. Slots take turns by depth."""
    growing = sum(seed.stage in NEXT for seed in seen.seeds)
    is_flat = state.best is not None and seen.epoch - state.best_epoch >= limits.patience
    has_time = seen.epochs_left is None or seen.epochs_left >= limits.epochs_left_min
    is_calm = all(is_due(last, seen.epoch, limits.pause) for last in (state.grown_epoch, state.lowered_epoch))
    if growing >= limits.growing_max or not (is_flat and has_time and is_calm and limits.blueprints):
        return None
    free = sorted((seed.depth, seed.key, seed) for seed in seen.seeds if _is_free(seed, state.slots[seed.key], limits))
    later = [one for one in free if one[:2] > state.grown_in]
    return next((seed for *_, seed in (*later, *free)), None)


def _is_free(seed: SeenSeed, slot: SlotMemory, limits: PolicyLimits) -> bool:
    # A slot in which every blueprint was refused is not asked again.
    return seed.stage == Stage.SEED_STAGE_DORMANT and not seed.is_sick and slot.refused < len(limits.blueprints)


def germination(state: PolicyState, seen: Seen, limits: PolicyLimits) -> tuple[PolicyState, MoveSeed] | None:
    """Return the state after the order to grow a seed, and the order; None if no seed is due or has a place."""
    if (seed := _slot_to_grow_in(state, seen, limits)) is None:
        return None
    slot = state.slots[seed.key]
    blueprint = limits.blueprints[slot.tried % len(limits.blueprints)]
    flat = counted(seen.epoch - state.best_epoch, "epoch")
    wish = MoveSeed(
        rule="plateau",
        reason=f"the best loss, {shown(state.best)}, is {flat} old",
        seed=seed.name,
        operation=Operation.SEED_OP_GERMINATE,
        blueprint=blueprint,
    )
    asked = replace(slot, tried=slot.tried + 1, before=state.best, is_asked=True)
    slots = {**state.slots, seed.key: asked}
    return replace(state, grown_epoch=seen.epoch, grown_in=(seed.depth, seed.key), slots=slots), wish
