"""Carry the entries of an optimizer's state over by a mapping, and the table of the entries of each known optimizer.

Promises: an optimizer or entry that is not in the table is reported by name. An identity gives an equal copy, bit for
bit. The result never shares memory with the old tensor. New units get first moments of 0. Their second moments are the
mean of the old units along the dimension that grew, or over all of them if several grew. So their first step is neither
divided by 0 nor too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

import torch

from tolariad.trainer.optim.cautious import CautiousAdamW
from tolariad.trainer.optim.mapping import FRESH

if TYPE_CHECKING:
    from tolariad.trainer.optim.mapping import ParameterMapping


class Kind(Enum):
    """How an entry scales if the gradient is multiplied by alpha. The value is the exponent of alpha.

    SECOND entries divide the step, so new units get the mean of the old units. For other kinds new units get 0.
    """

    FIRST = 1
    SECOND = 2
    # RMSprop's momentum sums g / sqrt(v), in which alpha cancels.
    INVARIANT = 0


STEP: Final = "step"
_ADAM: Final = {"exp_avg": Kind.FIRST, "exp_avg_sq": Kind.SECOND, "max_exp_avg_sq": Kind.SECOND}
KINDS: Final[Mapping[type[torch.optim.Optimizer], Mapping[str, Kind]]] = {
    CautiousAdamW: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.Adam: _ADAM,
    torch.optim.SGD: {"momentum_buffer": Kind.FIRST},
    torch.optim.RMSprop: {"square_avg": Kind.SECOND, "grad_avg": Kind.FIRST, "momentum_buffer": Kind.INVARIANT},
    torch.optim.Adagrad: {"sum": Kind.SECOND},
}


def kinds_of(optimizer: torch.optim.Optimizer) -> Mapping[str, Kind]:
    """Return the table of an optimizer's entries. Raises TypeError, naming the known classes, for any other class."""
    found = KINDS.get(type(optimizer))
    if found is None:
        known = ", ".join(sorted(kind.__name__ for kind in KINDS))
        raise TypeError(f"the state of {type(optimizer).__name__} is not known; the known optimizers are {known}")
    return found


def carried(old: torch.Tensor, mapping: ParameterMapping, kind: Kind) -> torch.Tensor:
    """Return the new tensor of an entry of this kind. It is always a copy. `mapping.carries` must be True."""
    match mapping.mapping_type:
        case "identity":
            return old.clone()
        case "reshape":
            return _scaled(old.reshape(mapping.new_shape).clone(), mapping, kind)
        case "permute" if not isinstance(mapping.order, Mapping):
            order = mapping.order or ()
            return _scaled(old.permute(*order).clone(memory_format=torch.contiguous_format), mapping, kind)
    if mapping.keep is None and not isinstance(mapping.scale, Mapping) and mapping.mapping_type == "expand":
        return _scaled(_grown(old, mapping.new_shape, kind), mapping, kind)
    new = old
    for dim in range(old.dim()):
        new = _along(new, dim, mapping, kind)
    new = old.clone() if new is old else new
    return new if isinstance(mapping.scale, Mapping) else _scaled(new, mapping, kind)


def _grown(old: torch.Tensor, shape: tuple[int, ...], kind: Kind) -> torch.Tensor:
    """Return old units first, new ones after them: the same as `_along`, with a single copy."""
    new = old.new_empty(shape) if kind is Kind.SECOND else old.new_zeros(shape)
    block = [slice(0, size) for size in old.shape]
    new[tuple(block)] = old
    for dim, size in enumerate(shape if kind is Kind.SECOND else ()):
        if size > old.shape[dim]:
            mean = new[tuple(block)].mean(dim, keepdim=True)
            block[dim] = slice(old.shape[dim], size)
            region = new[tuple(block)]
            region.copy_(mean.expand_as(region))
            block[dim] = slice(0, size)
    return new


def _along(tensor: torch.Tensor, dim: int, mapping: ParameterMapping, kind: Kind) -> torch.Tensor:
    """Map one dimension: gather the old units, scale them, and fill in the new ones."""
    indices = mapping.indices(dim)
    factors = mapping.scale.get(dim) if isinstance(mapping.scale, Mapping) else None
    if indices is None and factors is None:
        return tensor
    sources = torch.arange(tensor.shape[dim]) if indices is None else torch.as_tensor(indices, dtype=torch.int64)
    sources = sources.to(tensor.device)
    new = tensor.index_select(dim, sources.clamp(min=0))
    if factors is not None:
        powers = torch.tensor([factor**kind.value for factor in factors], dtype=tensor.dtype, device=tensor.device)
        new.mul_(powers.view([-1 if one == dim else 1 for one in range(tensor.dim())]))
    fresh = (sources == FRESH).nonzero().flatten()
    if fresh.numel():
        # Use the mean before scaling: a new unit is not a copy. With several dimensions the order does not matter.
        if kind is Kind.SECOND:
            shape = [fresh.numel() if one == dim else size for one, size in enumerate(new.shape)]
            new.index_copy_(dim, fresh, tensor.mean(dim, keepdim=True).expand(shape))
        else:
            new.index_fill_(dim, fresh, 0.0)
    return new


def _scaled(tensor: torch.Tensor, mapping: ParameterMapping, kind: Kind) -> torch.Tensor:
    """Multiply the whole tensor by the mapping's factor."""
    factor = mapping.scale if not isinstance(mapping.scale, Mapping) else 1.0
    return tensor if factor == 1.0 or kind is Kind.INVARIANT else tensor.mul_(factor**kind.value)
