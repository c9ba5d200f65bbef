"""Seeds as recorded in the journal: slice, apply table.

Invariants: a seed is only in a stage to which a legal move led. At most one move of a slot waits. No number of a
germination is used twice, even after a rollback. A slot that is back in DORMANT has no entry.

A rollback takes back the moves that its target does not contain. The number of boundary orders that acted tells which.
Step and batch do not: an order may act before or after a copy of the same place.
"""

from collections.abc import Iterable
from math import isfinite
from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.seeds.blending import alpha
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.stages import PLANTED, Learning, Stage
from tolariad.core.state.fates import COUNTER, OF_THE_TRAINER, set_back
from tolariad.core.state.fold import ApplyTable, by_order

# Leyline's limit of seeds in one packet.
SEED_SLOTS_MAX: Final = 100
# A slot that the model has lost keeps the entry of its seed: the former model may come back.
_ENTRIES_MAX: Final = 2 * SEED_SLOTS_MAX
_FULL: Final = (Stage.SHADOWING, Stage.PROBATIONARY, Stage.FOSSILIZED)


class Seed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seed of one slot, or what is left of it until the slot can germinate again.

    `germination`: its number among the run's germinations, from 1. `since_step`: the first update in this stage;
    `since_epochs`: how many epochs had ended then. `born_step` and `born_epochs`: the same of the germination.
    `loss_before`: the loss of the validation before the blending began. `by` and `reason`: who ordered the move to this
    stage, and why. `source`: the hash of the blueprint's file at the germination. `learning`: whether the seed is
    updated in this stage.
    """

    slot: str
    stage: Stage = Stage.DORMANT
    germination: int = 0
    blueprint: str = ""
    parameters: dict[str, float] = {}
    example: tuple[int, ...] = ()
    dtype: str = ""
    parameters_added: int = 0
    blend_steps: int = 0
    since_step: int = 1
    since_epochs: int = 0
    born_step: int = 1
    born_epochs: int = 0
    loss_before: float | None = None
    by: str = ""
    reason: str = ""
    source: str = ""
    learning: Learning = Learning.TRAIN

    def alpha_after(self, step: int) -> float:
        """Return the share of the seed in the slot's output after update `step`."""
        if self.stage is Stage.BLENDING:
            return alpha(step - self.since_step + 1, self.blend_steps)
        return 1.0 if self.stage in _FULL else 0.0


def group_of(slot: str) -> str:
    """Return the name of the parameter group of a slot's seed, which is that of its owner too."""
    return f"{m.SEED}{slot}"


class PastMove(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seed after boundary order `number`."""

    number: int
    seed: Seed


_TAKEN_BACK: Final = set_back("a move that the target does not contain is taken back")


class Seeds(msgspec.Struct, frozen=True):
    """Slice of RunState. `slots`: those of the model, in the order of its modules. `blueprints`: the known names.

    `seeds`: the seed of each slot that is not DORMANT. `moves`: all of the current line, oldest first: the checkpoint
    of step 0 is kept, so a rollback may take back any. The ledger's bound on germinations bounds them. `measures`: the
    newest measurements, by slot. `germinations`: how many were ever ordered.
    """

    slots: Annotated[tuple[m.SlotFound, ...], OF_THE_TRAINER] = ()
    blueprints: Annotated[tuple[str, ...], OF_THE_TRAINER] = ()
    seeds: Annotated[dict[str, Seed], _TAKEN_BACK] = {}
    moves: Annotated[tuple[PastMove, ...], _TAKEN_BACK] = ()
    measures: Annotated[dict[str, SeedMeasure], set_back("they are of seeds after the target")] = {}
    germinations: Annotated[int, COUNTER] = 0

    def has(self, slot: str) -> bool:
        """Return whether the model has this slot."""
        return any(one.name == slot for one in self.slots)

    def seed(self, slot: str) -> Seed:
        """Return the seed of a slot; that of an empty one if there is none."""
        return self.seeds.get(slot) or Seed(slot)

    def other_blueprints(self, found: Iterable[m.BlueprintSource]) -> tuple[str, ...]:
        """Return the blueprints whose files are others than when seeds of this line germinated from them."""
        now = {one.name: one.hash for one in found}
        grown = (one.seed for one in self.moves if one.seed.stage is Stage.GERMINATED and one.seed.source)
        return tuple(dict.fromkeys(one.blueprint for one in grown if now.get(one.blueprint, one.source) != one.source))

    @property
    def frozen_groups(self) -> frozenset[str]:
        """Return the parameter groups of seeds that no update moves."""
        return frozenset(group_of(slot) for slot, one in self.seeds.items() if one.learning is Learning.FROZEN)


class HasSeeds(Protocol):
    """A state with this slice."""

    @property
    def seeds(self) -> Seeds:
        """Return slots and seeds."""


def _registered(s: Seeds, e: m.SeedSlotsRegistered, _: m.Cause) -> Seeds:
    return replace(s, slots=e.slots[:SEED_SLOTS_MAX], blueprints=e.blueprints)


def _ordered(s: Seeds, order: m.MoveSeed, _: m.OrderGiven) -> Seeds:
    return replace(s, germinations=max(s.germinations, storable(order.number)))


def _moved(s: Seeds, order: m.MoveSeed, e: m.OrderActed) -> Seeds:
    seed = _after(s.seed(order.slot), order, e)
    measures = {slot: one for slot, one in s.measures.items() if slot != order.slot}
    measure = e.outcome_as(m.SeedMove).measure
    if measure is not None and order.stage in PLANTED:
        measures[order.slot] = measure
    return replace(
        s,
        seeds=_with(s.seeds, seed),
        moves=(*s.moves, PastMove(storable(e.number), seed)),
        measures=measures,
    )


def _with(seeds: dict[str, Seed], seed: Seed) -> dict[str, Seed]:
    others = {slot: one for slot, one in seeds.items() if slot != seed.slot}
    if seed.stage is Stage.DORMANT or len(others) >= _ENTRIES_MAX:
        return others
    return {**others, seed.slot: seed}


def _after(seed: Seed, order: m.MoveSeed, e: m.OrderActed) -> Seed:
    """Return the seed after a move."""
    move, step = e.outcome_as(m.SeedMove), storable(e.applied_before_step)
    if order.stage is Stage.GERMINATED:
        seed = Seed(
            order.slot,
            germination=storable(order.number),
            blueprint=order.blueprint,
            parameters=order.parameters,
            example=order.example,
            dtype=order.dtype,
            parameters_added=storable(move.parameters_added),
            born_step=step,
            born_epochs=storable(move.epochs),
            source=move.source,
        )
    if order.stage is Stage.BLENDING:
        seed = replace(seed, blend_steps=storable(order.blend_steps), loss_before=_finite(move.validation_loss))
    if order.stage is Stage.CULLED:
        seed = replace(seed, parameters_added=0)
    return replace(
        seed,
        stage=order.stage,
        since_step=step,
        since_epochs=storable(move.epochs),
        by=e.by,
        reason=e.reason,
        learning=order.learning,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _measured(s: Seeds, e: m.SeedsMeasured, _: m.Cause) -> Seeds:
    found = {one.slot: one for one in e.seeds[:SEED_SLOTS_MAX]}
    return replace(s, measures={slot: one for slot, one in found.items() if slot in s.seeds})


def seeds_at(s: Seeds, e: m.RolledBack) -> Seeds:
    """Return the seeds without the moves that the target of a rollback does not contain."""
    if not s.moves:
        return s
    held = tuple(one for one in s.moves if one.number <= (e.orders or 0))
    seeds: dict[str, Seed] = {}
    for one in held:
        seeds = _with(seeds, one.seed)
    return replace(s, seeds=seeds, moves=held, measures={})


APPLY: Final[ApplyTable] = {
    m.SeedSlotsRegistered: _registered,
    m.OrderGiven: by_order({m.MoveSeed: _ordered}),
    m.OrderActed: by_order({m.MoveSeed: _moved}),
    m.SeedsMeasured: _measured,
}
