"""Removal of units from a model: its parameters and buffers become smaller, and its modules agree with them.

Promises: what stays is copied bit for bit, in order. Parameters that were tied stay tied. The model has no gradients
afterwards. Nothing is checked here: `compaction` checks before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tolariad.trainer.optim.mapping import ParameterMapping
from tolariad.trainer.pruning.modules import refit, refit_norm
from tolariad.trainer.pruning.units import UnitGroup, removed


@torch.no_grad()
def remove(
    model: nn.Module, groups: Sequence[UnitGroup], chosen: Mapping[str, Iterable[int]]
) -> list[ParameterMapping]:
    """Remove the chosen units of `groups` from the model, and return how each parameter that shrank did so."""
    gone = removed(groups, chosen)
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
        touched = [name for name, one in module._parameters.items() if id(one) in new]  # noqa: SLF001
        for name in touched:
            module._parameters[name] = new[id(module._parameters[name])]  # noqa: SLF001
        if touched:
            refit(module)
    buffers = dict(model.named_buffers())
    for path, dims in gone.buffers.items():
        owner, _, name = path.rpartition(".")
        model.get_submodule(owner)._buffers[name] = _cut(buffers[path], _kept(buffers[path], dims))  # noqa: SLF001
    for path, dims in gone.norms.items():
        refit_norm(model.get_submodule(path), len(dims[0]))
    by_name = {group.name: group for group in groups}
    for name, units in chosen.items():
        _recount(model, by_name[name], len(set(units)))
    model.zero_grad(set_to_none=True)
    return mappings


def _kept(tensor: Tensor, dims: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    return {dim: sorted(set(range(tensor.shape[dim])) - set(gone)) for dim, gone in dims.items()}


def _cut(tensor: Tensor, keep: Mapping[int, Sequence[int]]) -> Tensor:
    for dim, indices in keep.items():
        tensor = tensor.index_select(dim, torch.tensor(indices, device=tensor.device))
    return tensor


def _recount(model: nn.Module, group: UnitGroup, gone: int) -> None:
    """Let an attention layer's own counts, of heads and of their channels, agree with the heads that are left."""
    for attribute in group.attributes:
        module = model.get_submodule(group.module)
        count = getattr(module, attribute)
        setattr(module, attribute, count - gone * count // group.width)
