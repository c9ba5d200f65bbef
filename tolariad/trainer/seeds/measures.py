"""Measurements of seeds for their gates, which need torch only.

Promises: a measurement changes no parameter, no gradient, no buffer and no generator of random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.gradients.graph import leaves_of
from tolariad.trainer.torch_private import modules

_PASSES: Final = 5


def non_finite(seed: nn.Module) -> int:
    """Return how many elements of the seed's parameters are not finite."""
    return sum(int((~parameter.detach().isfinite()).sum()) for parameter in seed.parameters())


def drift(seed: nn.Module, h: Tensor) -> float:
    """Return the L2 norm of seed(h) - h, divided by that of h, in eval mode.

    0 if both are 0; inf and NaN are returned as found. `h`: an input of the slot.
    """
    with torch.no_grad(), _measured(seed):
        wide = torch.promote_types(h.dtype, torch.float32)
        given = h.to(wide)
        change = torch.linalg.vector_norm(seed(h).to(wide) - given)
        size = torch.linalg.vector_norm(given)
    return 0.0 if float(change) == 0.0 else float(change / size)


def latency_ms(seed: nn.Module, example: Tensor, passes: int = _PASSES) -> float:
    """Return the shortest time of some forward passes in milliseconds, without gradients, after one that is not timed.

    Waits for the device.
    """
    times = []
    with torch.no_grad(), _measured(seed):
        for _ in range(passes + 1):
            _wait_for(example)
            begun = time.perf_counter()
            seed(example)
            _wait_for(example)
            times.append(time.perf_counter() - begun)
    return 1000 * min(times[1:])


def reached_by(seed: nn.Module, h: Tensor, others: Mapping[str, Tensor]) -> set[str]:
    """Return the names of those tensors among `others` to which the seed's output has a path of gradients.

    One pass in eval mode. `h`: an input of the slot; it is detached, as the slot does in TRAINING. A reentrant
    checkpoint hides the paths within it.
    """
    with torch.enable_grad(), _measured(seed):
        leaves = leaves_of(seed(h.detach()).sum())
    return {name for name, one in others.items() if id(one) in leaves}


@contextmanager
def _measured(module: nn.Module) -> Iterator[None]:
    """Restore modes, buffers and generators at the end of the block; in it, the module is in eval mode."""
    modes = [(one, one.training) for one in module.modules()]
    buffers = [
        (one, name, buffer, buffer.clone())
        for one, _ in modes
        for name, buffer in modules.buffers_of(one).items()
        if buffer is not None
    ]
    module.eval()
    try:
        with preserved_rng():
            yield
    finally:
        for one, training in modes:
            one.training = training
        with torch.no_grad():
            for one, name, buffer, kept in buffers:
                # The pass may have replaced it.
                modules.put_buffer(one, name, buffer.copy_(kept))


def _wait_for(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
