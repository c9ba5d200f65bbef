"""The start of training: restore what the order names, from disk, from memory, or from another run's checkpoint.

Of another run's checkpoint only the weights are taken and, if wanted, the optimizer's state. Rates, groups and other
settings of the optimizer are the new run's; so are random state, data and position. From the detector only the loss of
the untrained network is taken: the new run's loss starts far below it.

Promises: everything is verified, and compared by name, before a byte reaches the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.checkpoints.capture import MODEL_FILE, OPTIMIZER_FILE, live_tensors, optimizer_tree
from tolariad.trainer.checkpoints.restore import check_owners, check_tensors, load, restore, restore_optimizer
from tolariad.trainer.checkpoints.tensors import copy_into
from tolariad.trainer.rollback.slots import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core import messages as m
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.rollback.slots import Slots
    from tolariad.trainer.setup import Setup

_SMALLER: Final = (
    "channels were removed from its model, and the task builds the wide one. Name a checkpoint from before the "
    "compaction (--from RUN@ID), or let model(cfg) build the small one. `tolaria export-weights` writes what `shrink` "
    "removes (docs/pruning.md)"
)


def begin(
    setup: Setup, order: m.TrainFrom, checkpoints: Path, slots: Slots | None, each: Callable[[], None]
) -> tuple[Position, str] | None:
    """Restore what the order names. Raises CheckpointUnusable.

    Return the position, and the checkpoint that it is or descends from; None if the run starts as it was built. `each`
    is called from time to time.
    """
    ref = order.checkpoint
    if ref is None:
        if order.parent is not None:
            begin_from(setup, order.parent, each)
        return None
    if ref.slot is None:
        loaded, parent = load(checkpoints / ref.id, ref.manifest, each), ref.id
    else:
        loaded, parent = _from_memory(ref.slot, ref, slots, each)
    return restore(setup, loaded), parent


def _from_memory(slot: int, ref: m.CheckpointRef, slots: Slots | None, each: Callable[[], None]) -> tuple[Loaded, str]:
    """Read a snapshot that an earlier trainer wrote before it died."""
    each()
    if slots is None:
        raise CheckpointUnusable(f"slot {slot}", "this trainer has no memory for snapshots")
    held = slots.read(slot, ref.manifest)
    verify(held)
    each()
    return held.loaded, held.table.parent


def begin_from(setup: Setup, parent: m.Parent, each: Callable[[], None]) -> None:
    """Copy the parent's weights into the built run. Raises CheckpointUnusable before any change."""
    loaded = load(Path(parent.folder) / "checkpoints" / parent.checkpoint, parent.manifest, each)
    live, manifest = live_tensors(setup.model), loaded.manifest
    try:
        check_tensors(MODEL_FILE, live, loaded.model)
    except CheckpointUnfit as unfit:
        if manifest is None or not manifest.compactions:
            raise
        raise CheckpointUnfit(MODEL_FILE, _SMALLER) from unfit
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
    task_hash = setup.environment.task_hash
    if manifest is not None and task_hash and manifest.task_hash == task_hash:
        setup.watch.inherit(loaded.state.get("detector"))


def _optimizers(setup: Setup, loaded: Loaded) -> list[dict[str, Any]]:
    """Return the parent's state under this run's settings, by owner. Raises CheckpointUnusable if optimizers differ."""
    check_owners(setup, loaded)
    trees = []
    for (_, optimizer), held in zip(setup.owners, loaded.optimizers.values(), strict=True):
        here = optimizer_tree(setup.model, optimizer)
        differing = set(here["param_groups"][0]) ^ set(held["param_groups"][0])
        if differing:
            kind, keys = type(optimizer).__name__, ", ".join(sorted(differing))
            why = f"it is of another kind of optimizer than {kind}: they differ in {keys}"
            raise CheckpointUnusable(OPTIMIZER_FILE, why)
        trees.append({"state": held["state"], "param_groups": here["param_groups"], "more": held.get("more", {})})
    return trees
