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
from tolariad.trainer.checkpoints.restore import check_optimizer, check_tensors, load, restore_optimizer
from tolariad.trainer.checkpoints.tensors import copy_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core.run.words import Parent
    from tolariad.trainer.setup import Setup


def begin_from(setup: Setup, parent: Parent, each: Callable[[], None]) -> None:
    """Copy the parent's weights into the built run. Raises CheckpointUnusable before any change."""
    loaded = load(Path(parent.folder) / "checkpoints" / parent.checkpoint, parent.manifest, each)
    live = live_tensors(setup.model)
    check_tensors(names.MODEL_FILE, live, loaded.model)
    tree = _optimizer(setup, loaded.optimizer) if parent.with_optimizer else None
    with torch.no_grad():
        for name, tensor in live.items():
            copy_into(tensor, loaded.model[name])
    if setup.average is not None:
        setup.average.begin_anew()
    if tree is not None:
        restore_optimizer(setup.optimizer, tree, setup.device)
        setup.rates.restored(None, step=0, epoch=1)
    manifest, task_hash = loaded.manifest, setup.environment.task_hash
    if manifest is not None and task_hash and manifest.task_hash == task_hash:
        setup.watch.inherit(loaded.state.get("detector"))


def _optimizer(setup: Setup, held: dict[str, Any]) -> dict[str, Any]:
    """Return the parent's state with this run's settings. Raises CheckpointUnusable if it is of another optimizer."""
    here = optimizer_tree(setup.model, setup.optimizer)
    check_optimizer(here, held)
    keys, keys_held = (set(tree["param_groups"][0]) for tree in (here, held))
    if keys != keys_held:
        differing = ", ".join(sorted(keys ^ keys_held))
        why = f"it is of another kind of optimizer than {type(setup.optimizer).__name__}: they differ in {differing}"
        raise CheckpointUnusable(names.OPTIMIZER_FILE, why)
    return {"state": held["state"], "param_groups": here["param_groups"], "more": held.get("more", {})}
