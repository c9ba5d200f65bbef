"""Clip the gradients of several owners, each by its own norm.

A common norm would let one owner with large gradients shrink those of all others. Promises: the norms of all owners
reach the host in one transfer; on the CPU a gradient within the limit is not touched. The rule is that of
`torch.nn.utils.clip_grad_norm_`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from tolariad.trainer.torch_private import lists

# As in torch: it keeps the division defined for a norm of 0.
_EPSILON: Final = 1e-6
_HALF: Final = (torch.float16, torch.bfloat16)


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients that there are."""
    return [gradient for parameter in parameters if (gradient := parameter.grad) is not None]


def norms_of(owners: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """Return the norm of each owner's gradients before clipping, float64, on the device of the first gradient.

    `owners` is a list of results of `gradients_of`. Squares of half-precision gradients are summed in single precision.
    Waits for no device.
    """
    if all(gradient.is_cpu for of_one in owners for gradient in of_one):
        return torch.tensor([_norm_on_host(of_one) for of_one in owners], dtype=torch.float64)
    each = [[_dense(gradient) for gradient in of_one] for of_one in owners]
    norms = _norms([gradient for of_one in each for gradient in of_one])
    squares = (norms * norms).split([len(of_one) for of_one in each])
    return torch.stack([square.sum() for square in squares]).sqrt()


def _norm_on_host(gradients: Sequence[torch.Tensor]) -> float:
    """Return the norm over gradients on the CPU: here one call for each and a sum in Python is fastest."""
    total, norm_of = 0.0, torch.linalg.vector_norm
    for gradient in gradients:
        one = _dense(gradient) if gradient.is_sparse else gradient
        norm = norm_of(one, dtype=torch.float32 if one.dtype in _HALF else None).item()
        total += norm * norm
    return math.sqrt(total)


def clip(owners: Sequence[Sequence[torch.Tensor]], norms: torch.Tensor, limit: float) -> None:
    """Scale the gradients of each owner whose norm exceeds `limit` down to it, in place.

    `norms` holds the norms that `norms_of` returned for these owners.
    """
    if not limit:
        return
    # On the host reading the norms costs nothing. On a device it would wait; a factor of 1 changes no bit.
    on_host = norms.device.type == "cpu"
    for gradients, norm in zip(owners, norms.tolist() if on_host else norms, strict=True):
        if on_host and norm + _EPSILON <= limit:
            continue
        factor: Any = limit / (norm + _EPSILON) if on_host else (limit / (norm + _EPSILON)).clamp(max=1.0)
        _scale(gradients, factor)


@torch.no_grad()
def _scale(gradients: Sequence[torch.Tensor], factor: Any) -> None:
    for of_device in _by_device(gradients):
        by = factor.to(of_device[0].device) if isinstance(factor, torch.Tensor) else factor
        if dense := [gradient for gradient in of_device if not gradient.is_sparse]:
            lists.mul_(dense, by)
        for gradient in of_device:
            if gradient.is_sparse:
                gradient.mul_(by)


def _norms(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of each gradient, on the device of the first one."""
    if not gradients:
        return torch.zeros(0, dtype=torch.float64)
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, gradient in enumerate(gradients):
        places.setdefault((gradient.device, gradient.dtype), []).append(place)
    found: list[torch.Tensor] = [gradients[0]] * len(gradients)
    for (_, dtype), of_kind in places.items():
        chosen = [gradients[place] for place in of_kind]
        norms = lists.norm(chosen, 2, torch.float32 if dtype in _HALF else None)
        if len(places) == 1:
            return torch.stack(norms).double()
        for place, norm in zip(of_kind, norms, strict=True):
            found[place] = norm.to(gradients[0].device, torch.float64)
    return torch.stack(found)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _by_device(gradients: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in gradients:
        found.setdefault(gradient.device, []).append(gradient)
    return list(found.values())
