"""The architecture ledger as recorded in the journal: slice, apply table, and which changes a place contains.

Invariants: the ledger is of the current branch, oldest change first. A rollback removes the changes after its target.
Hooks change the model before a checkpoint of the same place, so for their changes the place alone tells. Seeds and
compactions change it by boundary orders, which may act before or after such a checkpoint: there the number of orders
tells.

The event of a seed's move or a compaction is also the entry here, so that no crash comes between the two.
"""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.pruning.ledger import COMPACT
from tolariad.core.calc.seeds import ledger
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.state.fates import set_back
from tolariad.core.state.fold import ApplyTable, by_order
from tolariad.core.state.seeds import SEED_SLOTS_MAX

# A seed that comes and goes takes two: 4096 are enough for four slots in every epoch of a run of 500 epochs. The ledger
# then takes about 1 MB in the state and in each checkpoint.
CHANGES_MAX: Final = 4096
# Removals of seeds are recorded beyond that: culling a seed must always be possible.
_HELD_MAX: Final = CHANGES_MAX + SEED_SLOTS_MAX


class ShapeChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the model's shape. `epoch_ended`: as in ArchitectureChanged.

    `order`: the number of the boundary order that germinated or culled a seed, or compacted the model; 0 for the change
    of a hook.
    """

    name: str
    arguments: str
    applied_before_step: int
    epoch_ended: int = 0
    order: int = 0


class Architecture(msgspec.Struct, frozen=True):
    """Slice of RunState. `changes`: those in force, at most CHANGES_MAX and a removal for each seed."""

    changes: Annotated[tuple[ShapeChange, ...], set_back("a change that the target does not contain is undone")] = ()


class HasArchitecture(Protocol):
    """A state with this slice."""

    @property
    def architecture(self) -> Architecture:
        """Return the architecture ledger."""


def is_held_at(applied_before_step: int, epoch_ended: int, step: int, epoch: int) -> bool:
    """Return whether a state after `step`, whose next batch is one of `epoch`, contains such a change."""
    made_after = applied_before_step - 1
    return made_after < step or (made_after == step and epoch_ended < epoch)


class SavedPlace(Protocol):
    """Where a saved state was taken: after which step, before a batch of which epoch, after how many boundary orders.

    `orders`: None if that was not recorded.
    """

    @property
    def step(self) -> int:
        """Return the last step that the state contains."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch."""

    @property
    def orders(self) -> int | None:
        """Return how many boundary orders the state contains."""


def is_in(change: ShapeChange, saved: SavedPlace) -> bool:
    """Return whether a saved state contains the change."""
    if change.order:
        return change.order <= (saved.orders or 0)
    return is_held_at(change.applied_before_step, change.epoch_ended, saved.step, saved.epoch)


def _changed(s: Architecture, e: m.ArchitectureChanged, _: m.Cause) -> Architecture:
    change = ShapeChange(e.name, e.arguments, e.applied_before_step, e.epoch_ended)
    return replace(s, changes=(*s.changes[: max(0, e.number - 1)], change)[:CHANGES_MAX])


def _moved(s: Architecture, order: m.MoveSeed, e: m.OrderActed) -> Architecture:
    if order.stage is Stage.GERMINATED:
        entry = ledger.germinated(
            order.slot,
            order.number,
            blueprint=order.blueprint,
            parameters=order.parameters,
            example=order.example,
            dtype=order.dtype,
            warmup_steps=order.warmup_steps,
        )
    elif order.stage is Stage.CULLED:
        entry = ledger.removed(order.slot, order.number)
    else:
        return s
    change = ShapeChange(entry.name, entry.arguments, e.applied_before_step, order=storable(e.number))
    return replace(s, changes=(*s.changes, change)[:_HELD_MAX])


def _compacted(s: Architecture, order: m.CompactModel, e: m.OrderActed) -> Architecture:
    change = ShapeChange(COMPACT, order.removal, e.applied_before_step, order=storable(e.number))
    return replace(s, changes=(*s.changes, change)[:_HELD_MAX])


def architecture_at(s: Architecture, e: m.RolledBack) -> Architecture:
    """Return the ledger without the changes that the target of a rollback does not contain."""
    return replace(s, changes=tuple(one for one in s.changes if is_in(one, e))) if s.changes else s


APPLY: Final[ApplyTable] = {
    m.ArchitectureChanged: _changed,
    m.OrderActed: by_order({m.MoveSeed: _moved, m.CompactModel: _compacted}),
}
