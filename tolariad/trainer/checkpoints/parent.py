"""Start with the weights of another run's checkpoint and, if wanted, with its optimizer's state.

Promises: everything is verified and compared by name before the first value is copied. Rates, groups and other settings
of the optimizer are the new run's; so are random state, data and position. From the detector only the loss of the
untrained
network is taken: the new run's loss starts far below it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tolariad.storage import CheckpointUnusable
from tolariad.trainer.checkpoints import capture as names
from tolariad.trainer.checkpoints.capture import live_tensors, optimizer_tree
from tolariad.trainer.checkpoints.restore import check_owners, check_tensors, load, restore_optimizer
from tolariad.trainer.checkpoints.tensors import copy_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core.run.words import Parent
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


def begin_from(setup: Setup, parent: Parent, each: Callable[[], None]) -> None:
    """Copy the parent's weights into the built run. Raises CheckpointUnusable before any change."""
    loaded = load(Path(parent.folder) / "checkpoints" / parent.checkpoint, parent.manifest, each)
    live = live_tensors(setup.model)
    check_tensors(names.MODEL_FILE, live, loaded.model)
    trees = _optimizers(setup, loaded) if parent.with_optimizer else []
    with torch.no_grad():
        for name, tensor in live.items():
            copy_into(tensor, loaded.model[name])
    if setup.average is not None:
        setup.average.begin_anew()
    for owner, tree in zip(setup.owners, trees, strict=False):
        restore_optimizer(owner.optimizer, tree, setup.device)
    if trees:
        setup.rates.restored(None, step=0, epoch=1)
    manifest, task_hash = loaded.manifest, setup.environment.task_hash
    if manifest is not None and task_hash and manifest.task_hash == task_hash:
        setup.watch.inherit(loaded.state.get("detector"))


def _optimizers(setup: Setup, loaded: Loaded) -> list[dict[str, Any]]:
    """Return the parent's state under this run's settings, by owner. Raises CheckpointUnusable if optimizers differ."""
    check_owners(setup, loaded)
    return [
        _optimizer(setup, owner.optimizer, tree)
        for owner, tree in zip(setup.owners, loaded.optimizers.values(), strict=True)
    ]


def _optimizer(setup: Setup, optimizer: torch.optim.Optimizer, held: dict[str, Any]) -> dict[str, Any]:
    here = optimizer_tree(setup.model, optimizer)
    keys, keys_held = (set(tree["param_groups"][0]) for tree in (here, held))
    if keys != keys_held:
        differing = ", ".join(sorted(keys ^ keys_held))
        why = f"it is of another kind of optimizer than {type(optimizer).__name__}: they differ in {differing}"
        raise CheckpointUnusable(names.OPTIMIZER_FILE, why)
    return {"state": held["state"], "param_groups": here["param_groups"], "more": held.get("more", {})}
