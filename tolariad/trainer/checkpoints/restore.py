"""A run's state out of a checkpoint's folder, into a run that was built the same way.

Promises: every byte is verified and every name, shape and dtype compared before the first value reaches the model, so a
checkpoint that cannot be used leaves the run as it was; values are copied, so the next step never changes what was read.
It must not know: which checkpoint to take, or what happens when one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from tolariad.storage import CheckpointUnusable, Manifest, read_manifest, read_piece
from tolariad.trainer.checkpoints import capture as names
from tolariad.trainer.checkpoints.capture import Position, live_tensors, optimizer_tree
from tolariad.trainer.checkpoints.rng import set_rng_states
from tolariad.trainer.checkpoints.tensors import copy_into, read_tensors
from tolariad.trainer.checkpoints.tree import decode_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.trainer.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A verified checkpoint in memory. It may be restored from any number of times.

    `average` is the moving average of the parameters, where the run kept one.
    """

    manifest: Manifest
    position: Position
    model: dict[str, torch.Tensor]
    state: dict[str, Any]
    optimizer: dict[str, Any]
    average: dict[str, torch.Tensor] | None = None


def load(folder: Path, manifest_hash: str, device: torch.device, each: Callable[[], None]) -> Loaded:
    """Read and verify everything; `each` is called after each piece. Raises CheckpointUnusable."""
    manifest = read_manifest(folder, manifest_hash)
    pieces: dict[str, bytes] = {}
    for piece in manifest.pieces:
        pieces[piece.name] = read_piece(folder, piece)
        each()
    model = _tensors(pieces, names.MODEL_FILE)
    for alias, holder in manifest.aliases.items():
        if holder not in model:
            raise CheckpointUnusable("manifest.json", f"{alias} is said to be tied to {holder}, which is not there")
        model[alias] = model[holder]
    average = _tensors(pieces, names.AVERAGE_FILE) if names.AVERAGE_FILE in pieces else None
    optimizer_tensors = _tensors(pieces, names.OPTIMIZER_FILE)
    state_tensors = _tensors(pieces, names.STATE_TENSORS_FILE)
    try:
        state = decode_tree(_piece(pieces, names.STATE_FILE), state_tensors, device)
        optimizer = decode_tree(state["optimizer"], optimizer_tensors, device)
        position = Position(**state["position"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointUnusable(names.STATE_FILE, f"does not hold a run's state: {error!r}") from error
    return Loaded(manifest=manifest, position=position, model=model, state=state, optimizer=optimizer, average=average)


def _piece(pieces: dict[str, bytes], name: str) -> bytes:
    """Take a piece's bytes out of the table: once they are read, nobody needs them twice in memory."""
    if name not in pieces:
        raise CheckpointUnusable(name, "is not among the pieces of this checkpoint")
    return pieces.pop(name)


def _tensors(pieces: dict[str, bytes], name: str) -> dict[str, torch.Tensor]:
    try:
        return read_tensors(_piece(pieces, name))
    except ValueError as error:
        raise CheckpointUnusable(name, str(error)) from error


def check_fits(setup: Setup, loaded: Loaded) -> None:
    """Compare names, shapes and dtypes with the built run. Raises CheckpointUnusable; changes nothing."""
    check_tensors(names.MODEL_FILE, live_tensors(setup.model), loaded.model)
    if setup.average is not None and loaded.average is not None:
        check_tensors(names.AVERAGE_FILE, setup.average.tensors, loaded.average)
    check_optimizer(optimizer_tree(setup.model, setup.optimizer), loaded.optimizer)
    cuda = loaded.state["rng"]["cuda"]
    if cuda and len(cuda) != torch.cuda.device_count():
        why = f"it holds random states of {len(cuda)} CUDA devices, here are {torch.cuda.device_count()}"
        raise CheckpointUnusable(names.STATE_FILE, why)


def check_optimizer(here: dict[str, Any], held: dict[str, Any]) -> None:
    """Raise CheckpointUnusable where the parameters or groups of two optimizer trees differ."""
    sizes, sizes_held = ([len(group["params"]) for group in tree["param_groups"]] for tree in (here, held))
    if here["names"] != held["names"] or sizes != sizes_held:
        raise CheckpointUnusable(names.OPTIMIZER_FILE, "it is of an optimizer with other parameters or groups")


def check_tensors(file: str, live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> None:
    """Raise CheckpointUnusable where names, shapes or dtypes differ."""
    for name in sorted(live.keys() ^ held.keys()):
        where = "the model has no such tensor" if name in held else "the checkpoint has no such tensor"
        raise CheckpointUnusable(file, f"{name}: {where}; the task was changed since")
    for name, tensor in live.items():
        stored = held[name]
        if (stored.shape, stored.dtype) != (tensor.shape, tensor.dtype):
            was, now = f"{tuple(stored.shape)} {stored.dtype}", f"{tuple(tensor.shape)} {tensor.dtype}"
            raise CheckpointUnusable(file, f"{name}: it holds {was}, the model has {now}")


def restore(setup: Setup, loaded: Loaded) -> Position:
    """Copy everything into the built run and return where it stands. Raises CheckpointUnusable before any change."""
    check_fits(setup, loaded)
    with torch.no_grad():
        for name, tensor in live_tensors(setup.model).items():
            copy_into(tensor, loaded.model[name])
    _restore_average(setup, loaded)
    _restore_model_tree(setup.model, loaded.state["model"])
    scaling = loaded.state.get("scaling")
    if setup.scaling is not None and scaling is not None:
        setup.scaling.load(scaling)
    restore_optimizer(setup.optimizer, loaded.optimizer)
    setup.rates.restored(_copy(loaded.state.get("rates")), loaded.position.step, loaded.position.epoch)
    load_task = getattr(setup.task, "load_state_dict", None)
    if callable(load_task) and loaded.state["task"] is not None:
        load_task(_copy(loaded.state["task"]))
    setup.train.load_state(_copy(loaded.state["data"]))
    # Last: whatever was called above may have drawn.
    set_rng_states(loaded.state["rng"])
    return loaded.position


def _restore_average(setup: Setup, loaded: Loaded) -> None:
    """A checkpoint of a run that kept no average yet is the start of one: at its own weights, not at the initial ones."""
    if setup.average is None:
        return
    if loaded.average is None:
        setup.average.begin_anew()
    else:
        setup.average.load(loaded.average)


def _restore_model_tree(model: torch.nn.Module, tree: dict[str, Any]) -> None:
    frozen, in_eval = set(tree["frozen"]), set(tree["in_eval"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in in_eval
        if name in tree["extra"]:
            module.set_extra_state(_copy(tree["extra"][name]))


def restore_optimizer(optimizer: torch.optim.Optimizer, tree: dict[str, Any]) -> None:
    """Give the optimizer copies of its state, in the dtypes it had.

    Optimizer.load_state_dict adopts the tensors it is given, and casts them to their parameter's dtype; both are undone
    by putting exact copies in their place after it has done what a subclass may want done.
    """
    held = {"state": _copy(tree["state"]), "param_groups": _copy(tree["param_groups"])}
    optimizer.load_state_dict(held)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, value in _copy(tree["state"]).items():
        optimizer.state[parameters[key] if isinstance(key, int) else key] = value


def _copy(value: Any) -> Any:
    """A copy of nested plain data in which no tensor shares memory with the original."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return type(value)((key, _copy(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(item) for item in value)
    return value
