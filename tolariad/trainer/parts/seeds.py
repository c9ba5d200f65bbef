"""The slots for seeds, and the optimizers of the seeds in them.

Tensors of seeds have a file of their own, whichever part they belong to: so the host's files are the same with and
without seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tolariad.trainer.checkpoints.files import SEEDS_FILE
from tolariad.trainer.checkpoints.optimizers import encoded, restore_optimizer
from tolariad.trainer.parts.part import Part, Restoring, State
from tolariad.trainer.seeds.handler import SeedHandler
from tolariad.trainer.seeds.room import room_for_seeds

if TYPE_CHECKING:
    import torch

    from tolariad.trainer.checkpoints.snapshot import Snapshot
    from tolariad.trainer.parts.part import Files, Orders, Trained
    from tolariad.trainer.seeds.garden import Garden
    from tolariad.trainer.setup import Setup


class SeedsPart(Part):
    """The garden. The parameters of seeds are a part of the model."""

    name = "seeds"

    def __init__(self, setup: Setup) -> None:
        self._setup, self._garden = setup, setup.garden

    @property
    def span(self) -> str:
        return "seeds" if self._garden.active else "rest"

    def state(self) -> State:
        if not self._garden.plots:
            return State()
        owners, tensors = encoded(self._setup.model, self._garden.owned_by_seeds())
        tree = {"seeds": {"slots": self._garden.state(), "owners": owners}}
        return State(tree, {SEEDS_FILE: tensors} if self._garden.active else {})

    def room(self, live: Snapshot) -> int:
        return room_for_seeds(self._setup)

    def load(self, held: Restoring) -> None:
        for owner in self._garden.owned_by_seeds():
            restore_optimizer(owner.optimizer, held.loaded.optimizers[owner.name], held.device, held.copy)
        self._garden.load(held.loaded.slots, held.position.step)

    def mark(self) -> tuple[dict[str, Any], int]:
        return self._garden.state(), self._setup.rates.global_step

    def go_back(self, mark: tuple[dict[str, Any], int]) -> None:
        self._garden.load(*mark)

    def orders(self, trained: Trained) -> Orders:
        return SeedHandler(self._setup, trained).orders


def by_file(tensors: dict[str, torch.Tensor], file: str, prefix: str, garden: Garden) -> Files:
    """Return the tensors of the host in `file`, and those of seeds in theirs, with `prefix` before their names."""
    if not garden.active:
        return {file: tensors}
    of_seeds = {f"{prefix}{name}": tensor for name, tensor in tensors.items() if garden.is_of_seed(name)}
    return {file: {n: t for n, t in tensors.items() if f"{prefix}{n}" not in of_seeds}, SEEDS_FILE: of_seeds}
