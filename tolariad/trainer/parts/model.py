"""The model: parameters, buffers, and what its modules hold beside tensors.

Promises: tied tensors stay one tensor. Values are copied into the live tensors; only buffers that changed their shape
during training are replaced (`checkpoints.moved`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.storage import CheckpointUnfit
from tolariad.storage.manifest import OF_MODEL
from tolariad.trainer.checkpoints.compared import differing_tensors
from tolariad.trainer.checkpoints.files import MODEL_FILE
from tolariad.trainer.checkpoints.moved import buffer_tree, moved_buffers, put_buffers
from tolariad.trainer.checkpoints.tensors import check_tensor, raw_bytes, without_duplicates
from tolariad.trainer.checkpoints.tree import NotCapturable
from tolariad.trainer.parts.part import Part, Restoring, State
from tolariad.trainer.parts.seeds import by_file
from tolariad.trainer.torch_private import modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup

# A start builds the model that the task builds, and makes the changes of the ledger on it.
OF_ANOTHER_MODEL: Final = (
    "the task has changed since, or one of its hooks changed the model without rates.grow(), which records a change. "
    "`tolaria events RUN -t OptimizerRebuildCommitted` may show when. Only a checkpoint from the same side of that "
    "change fits"
)


class ModelPart(Part):
    """The model that trains, with the seeds in its slots."""

    name = "model"

    def __init__(self, setup: Setup) -> None:
        self._model, self._garden, self._device = setup.model, setup.garden, setup.device
        # The hash of the structure that the task built.
        self._built = setup.environment.model_hash

    @property
    def span(self) -> str:
        return "model"

    def state(self) -> State:
        tensors, aliases = without_duplicates(live_tensors(self._model))
        tree = {**model_tree(self._model), "buffers": buffer_tree(self._model, self._built)}
        return State(
            {"model": tree},
            by_file(tensors, MODEL_FILE, OF_MODEL, self._garden),
            aliases,
            transient_buffers(self._model),
        )

    def fit(self, loaded: Loaded) -> None:
        live = live_tensors(self._model)
        otherwise = moved_buffers(self._model, self._built, loaded).names
        compared, held = ({n: t for n, t in tensors.items() if n not in otherwise} for tensors in (live, loaded.model))
        check_tensors(MODEL_FILE, compared, held)
        _check_shared(compared, held)

    def load(self, held: Restoring) -> None:
        model, loaded = self._model, held.loaded
        # Those of an interrupted step, or of the step before a change that is undone: the next step must not add to
        # them.
        model.zero_grad(set_to_none=True)
        moved = moved_buffers(model, self._built, loaded)
        put_buffers(model, loaded, moved, self._device)
        live = live_tensors(model)
        held.copy([(tensor, loaded.model[name]) for name, tensor in live.items() if name not in moved.put])
        _restore_model_tree(model, held.entry("model"))

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        yield from differing_tensors("", now.model, held.model)
        yield from super().differing(now, held)


def live_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer by each of its names, including buffers that state_dict() leaves out."""
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor.detach() for name, tensor in model.named_buffers(remove_duplicate=False)}
    tensors = parameters | buffers
    for name, tensor in tensors.items():
        try:
            check_tensor(tensor)
        except ValueError as error:
            raise NotCapturable(f"model.{name}", str(error)) from error
    return tensors


def transient_buffers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that state_dict() leaves out."""
    return tuple(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in modules.transient_names(module)
    )


def model_tree(model: nn.Module) -> dict[str, Any]:
    """Return a model's state besides tensors: frozen parameters, modules in eval mode, extra state of modules."""
    extra = {
        name: module.get_extra_state()
        for name, module in model.named_modules()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state
    }
    return {
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "in_eval": [name for name, module in model.named_modules() if not module.training],
        "extra": extra,
    }


def _restore_model_tree(model: torch.nn.Module, tree: dict[str, Any]) -> None:
    frozen, in_eval = set(tree["frozen"]), set(tree["in_eval"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in in_eval
        if name in tree["extra"]:
            module.set_extra_state(tree["extra"][name])


def check_tensors(file: str, live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> None:
    """Raise CheckpointUnfit if names, shapes or dtypes differ."""
    for name in sorted(live.keys() ^ held.keys()):
        where = "the model has no such tensor" if name in held else "the checkpoint has no such tensor"
        raise CheckpointUnfit(file, f"{name}: {where}; {OF_ANOTHER_MODEL}")
    for name, tensor in live.items():
        stored = held[name]
        if (stored.shape, stored.dtype) != (tensor.shape, tensor.dtype):
            was, now = f"{tuple(stored.shape)} {stored.dtype}", f"{tuple(tensor.shape)} {tensor.dtype}"
            raise CheckpointUnfit(file, f"{name}: it holds {was}, the model has {now}; {OF_ANOTHER_MODEL}")


def _check_shared(live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> None:
    """Raise CheckpointUnfit if two names are one tensor in the model, but differ in the checkpoint."""
    for alias, holder in without_duplicates(live)[1].items():
        one, other = held[alias], held[holder]
        if one is not other and raw_bytes(one) != raw_bytes(other):
            why = f"{alias} and {holder} are one tensor in the model, but differ in the checkpoint; {OF_ANOTHER_MODEL}"
            raise CheckpointUnfit(MODEL_FILE, why)
