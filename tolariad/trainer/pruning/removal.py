"""Removal of units from a model: its parameters and buffers become smaller, and its modules agree with them.

Promises: what stays is copied bit for bit, in order. Parameters that were tied stay tied. The model has no gradients
afterwards. Nothing is checked here: `compaction` checks before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tolariad.trainer.optim.mapping import ParameterMapping
from tolariad.trainer.pruning.modules import refit, refit_norm
from tolariad.trainer.pruning.units import Fewer, Removed
from tolariad.trainer.torch_private import modules


@torch.no_grad()
def remove(model: nn.Module, gone: Removed) -> list[ParameterMapping]:
    """Remove units with all that goes with them from the model. Return how each parameter that shrank did so."""
    old = dict(model.named_parameters())
    new: dict[int, nn.Parameter] = {}
    mappings = []
    for path, dims in gone.parameters.items():
        keep = _kept(old[path], dims)
        smaller = nn.Parameter(_cut(old[path], keep), requires_grad=old[path].requires_grad)
        new[id(old[path])] = smaller
        shapes = tuple(old[path].shape), tuple(smaller.shape)
        mappings.append(ParameterMapping(path, path, *shapes, "contract", keep=keep))
    for module in model.modules():
        touched = {name: new[id(one)] for name, one in modules.parameters_of(module).items() if id(one) in new}
        for name, smaller in touched.items():
            modules.put_parameter(module, name, smaller)
        if touched:
            refit(module)
    buffers = dict(model.named_buffers())
    for path, dims in gone.buffers.items():
        owner, _, name = path.rpartition(".")
        modules.put_buffer(model.get_submodule(owner), name, _cut(buffers[path], _kept(buffers[path], dims)))
    for path, dims in gone.norms.items():
        refit_norm(model.get_submodule(path), len(dims[0]))
    for one in gone.heads:
        _recount(model, one)
    model.zero_grad(set_to_none=True)
    return mappings


def _kept(tensor: Tensor, dims: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    return {dim: sorted(set(range(tensor.shape[dim])) - set(gone)) for dim, gone in dims.items()}


def _cut(tensor: Tensor, keep: Mapping[int, Sequence[int]]) -> Tensor:
    for dim, indices in keep.items():
        tensor = tensor.index_select(dim, torch.tensor(indices, device=tensor.device))
    return tensor


def _recount(model: nn.Module, one: Fewer) -> None:
    """Let an attention layer's own count, of heads or of their channels, agree with the heads that are left."""
    module = model.get_submodule(one.module)
    count = getattr(module, one.attribute)
    setattr(module, one.attribute, count - one.gone * count // one.width)
