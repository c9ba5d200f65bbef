"""The optimizers of the host's owners: moments, options of groups, and what a class keeps beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.checkpoints.compared import differing_values
from tolariad.trainer.checkpoints.files import OPTIMIZER_FILE
from tolariad.trainer.checkpoints.optimizers import encoded, optimizer_tree, restore_optimizer, try_a_step
from tolariad.trainer.checkpoints.tree import encode_tree
from tolariad.trainer.optim.hyper import Hyperparameters
from tolariad.trainer.orders.numbered import Kind
from tolariad.trainer.parts.model import OF_ANOTHER_MODEL
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.parts.part import Orders, Trained
    from tolariad.trainer.setup import Setup


class OwnersPart(Part):
    """The host's optimizers. Those of seeds go with their slots; that they fit is compared here."""

    name = "optimizer"

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    @property
    def span(self) -> str:
        return "optimizer"

    def state(self) -> State:
        model, (first, *others) = self._setup.model, self._setup.host
        tree, tensors = encode_tree(optimizer_tree(model, first.optimizer), "optimizer")
        owners, more = encoded(model, others)
        entries = {"optimizer": tree, **({"first_owner": first.name, "owners": owners} if owners else {})}
        return State(entries, {OPTIMIZER_FILE: tensors | more})

    def check_capturable(self) -> None:
        for _, optimizer in self._setup.owners:
            encode_tree(optimizer_tree(self._setup.model, optimizer), "optimizer")
            try_a_step(optimizer)

    def fit(self, loaded: Loaded) -> None:
        check_owners(self._setup, loaded)

    def load(self, held: Restoring) -> None:
        for owner, tree in zip(self._setup.host, held.loaded.optimizers.values(), strict=False):
            restore_optimizer(owner.optimizer, tree, held.device, held.copy)

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        for owner, tree in held.optimizers.items():
            for key, stored in tree.items():
                live = now.optimizers.get(owner, {}).get(key)
                yield from differing_values(f"{owner or 'optimizer'}.{key}", live, stored)

    def orders(self, trained: Trained) -> Orders:
        return {m.SetHyperparameters: Kind(Hyperparameters(self._setup).set)}


def check_owners(setup: Setup, loaded: Loaded) -> None:
    """Raise CheckpointUnfit if the owners differ, or the parameters or groups of one of them."""
    here = tuple(owner.name for owner in setup.host) if len(setup.host) > 1 else ("",)
    here += tuple(owner.name for owner in setup.garden.owned_by_seeds())
    if here != tuple(loaded.optimizers):
        was, now = (", ".join(filter(None, each)) or "one optimizer" for each in (loaded.optimizers, here))
        raise CheckpointUnfit(OPTIMIZER_FILE, f"it is of a run with other optimizers: it holds {was}, here is {now}")
    for owner, tree in zip(setup.owners, loaded.optimizers.values(), strict=True):
        here_tree = optimizer_tree(setup.model, owner.optimizer)
        sizes, sizes_held = ([len(group["params"]) for group in one["param_groups"]] for one in (here_tree, tree))
        if here_tree["names"] != tree["names"] or sizes != sizes_held:
            why = f"it is of an optimizer with other parameters or groups; {OF_ANOTHER_MODEL}"
            raise CheckpointUnfit(OPTIMIZER_FILE, why)
