"""Clip the gradients of several owners, each by its own norm.

A common norm would let one owner with large gradients shrink those of all others. Promises: the norms of all owners
reach the host in one transfer; on the CPU a gradient within the limit is not touched. The rule is that of
`torch.nn.utils.clip_grad_norm_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

# As in torch: it keeps the division defined for a norm of 0.
_EPSILON: Final = 1e-6
_HALF: Final = (torch.float16, torch.bfloat16)


def norms_of(owners: Sequence[Iterable[torch.Tensor]]) -> torch.Tensor:
    """Return the norm of each owner's gradients before clipping, float64, on the device of the first gradient.

    Squares of half-precision gradients are summed in single precision. Waits for no device.
    """
    each = [[_dense(grad) for parameter in of_one if (grad := parameter.grad) is not None] for of_one in owners]
    first = next((gradient.device for of_one in each for gradient in of_one), torch.device("cpu"))
    return torch.stack([_norm(of_one, first) for of_one in each]) if each else torch.zeros(0, dtype=torch.float64)


@torch.no_grad()
def clip(owners: Sequence[Sequence[torch.Tensor]], norms: torch.Tensor, limit: float) -> None:
    """Scale the gradients of each owner whose norm exceeds `limit` down to it, in place. `norms`: from `norms_of`."""
    if not limit:
        return
    # On the host the factors are there for nothing. On a device reading them would wait; a factor of 1 changes no bit.
    on_host = norms.device.type == "cpu"
    factors: Any = (limit / (norms + _EPSILON)).clamp(max=1.0)
    for parameters, factor in zip(owners, factors.tolist() if on_host else factors, strict=True):
        if on_host and factor >= 1.0:
            continue
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for of_device in _by_device(gradients):
            by = factor if on_host else factor.to(of_device[0].device)
            if dense := [gradient for gradient in of_device if not gradient.is_sparse]:
                torch._foreach_mul_(dense, by)
            for gradient in of_device:
                if gradient.is_sparse:
                    gradient.mul_(by)


def _norm(gradients: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    half = [gradient for gradient in gradients if gradient.dtype in _HALF]
    other = [gradient for gradient in gradients if gradient.dtype not in _HALF]
    norms: list[torch.Tensor] = []
    if other:
        norms += torch._foreach_norm(other)  # noqa: SLF001 - clip_grad_norm_ uses it
    if half:
        norms += torch._foreach_norm(half, 2, torch.float32)  # noqa: SLF001
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device, torch.float64) for norm in norms]))
    return total


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _by_device(gradients: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in gradients:
        found.setdefault(gradient.device, []).append(gradient)
    return list(found.values())
