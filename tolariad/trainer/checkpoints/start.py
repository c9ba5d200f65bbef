"""The start of training: restore what the order names, from disk, from memory, or from another run's checkpoint.

Of another run's checkpoint only the weights are taken and, if wanted, the optimizer's state. Rates, groups and other
settings of the optimizer are the new run's; so are random state, data and position. From the detector only the loss of
the untrained network is taken: the new run's loss starts far below it.

Promises: everything is verified, and compared by name, before a byte reaches the model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from blake3 import blake3

from tolariad import run_files
from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.checkpoints.files import MODEL_FILE, OPTIMIZER_FILE
from tolariad.trainer.checkpoints.optimizers import optimizer_tree, restore_optimizer
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.checkpoints.tensors import copy_into, place_of, read_tensors
from tolariad.trainer.parts.model import check_tensors, live_tensors
from tolariad.trainer.parts.owners import check_owners
from tolariad.trainer.rollback.snapshot_slots import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.rollback.snapshot_slots import Slots
    from tolariad.trainer.setup import Setup

# Of names that do not fit.
_NAMED: Final = 5
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
            if order.parent.file:
                begin_with(setup, order.parent, checkpoints.parent, each)
            else:
                begin_from(setup, order.parent, each)
        return None
    if ref.slot is None:
        loaded = load(checkpoints / ref.id, ref.manifest, each, setup.state_rank)
        parent = ref.id
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


def begin_with(setup: Setup, parent: m.Parent, run_dir: Path, each: Callable[[], None]) -> None:
    """Copy the weights of a file into the built run. Raises CheckpointUnusable before any change."""
    with os.fdopen(run_files.open_file(run_dir, m.INIT_NAME, os.O_RDONLY), "rb") as file:
        data = bytearray(file.read())
    each()
    if blake3(data).hexdigest() != parent.manifest:
        raise CheckpointUnusable(m.INIT_NAME, "has changed since the run began with it")
    try:
        held = read_tensors(memoryview(data))
    except ValueError as error:
        raise CheckpointUnusable(m.INIT_NAME, str(error)) from error
    each()
    pairs = _fitted(setup.model, held)
    with torch.no_grad():
        for tensor, given in pairs:
            copy_into(tensor, given)
    if setup.average is not None:
        setup.average.begin_anew()


def _fitted(model: torch.nn.Module, held: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each tensor of the model's state_dict with the given one. Raises CheckpointUnfit if they do not fit.

    A tied tensor may be given under one of its names. A number of another precision is converted, as load_state_dict
    does.
    """
    named = model.state_dict().keys()
    live = {name: tensor for name, tensor in live_tensors(model).items() if name in named}
    missing, more = [name for name in live if name not in held], [name for name in held if name not in live]
    tied = {place_of(live[name]) for name in live if name in held}
    missing = [name for name in missing if place_of(live[name]) not in tied]
    if missing or more:
        lacks = [f"it has no {', '.join(missing[:_NAMED])}"] if missing else []
        lacks += [f"the model has no {', '.join(more[:_NAMED])}"] if more else []
        raise CheckpointUnfit(m.INIT_NAME, "; ".join(lacks))
    for name, given in held.items():
        if given.shape != live[name].shape or given.is_floating_point() != live[name].is_floating_point():
            was, now = (f"{tuple(one.shape)} {one.dtype}" for one in (given, live[name]))
            raise CheckpointUnfit(m.INIT_NAME, f"{name}: it holds {was}, the model has {now}")
    return [(live[name], given) for name, given in held.items()]


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
