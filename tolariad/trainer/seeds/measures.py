"""Measurements of seeds for their gates, which need torch only.

Promises: a measurement changes no parameter, no gradient, no buffer and no generator of random numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final

import torch
from torch import Tensor, nn

from tolariad.core.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.seeds.places import host_parameters, slots_of
from tolariad.trainer.seeds.slot import SeedSlot

_PASSES: Final = 5


def gradient_norm(seed: nn.Module) -> Tensor:
    """Return the L2 norm of the seed's gradients, a tensor without dimensions on their device; 0 if it has none."""
    gradients = [parameter.grad for parameter in seed.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def non_finite(seed: nn.Module) -> int:
    """Return how many elements of the seed's parameters are not finite."""
    return sum(int((~parameter.detach().isfinite()).sum()) for parameter in seed.parameters())


@contextmanager
def inputs_of(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the last input of each slot, detached, by the slot's name, for forward passes in the block.

    A compiled model runs without the compiler in the block.
    """
    seen: dict[str, Tensor] = {}

    def keep(slot: nn.Module, given: tuple[Tensor, ...]) -> None:
        if isinstance(slot, SeedSlot):
            seen[slot.name] = given[0].detach()

    hooks = [slot.register_forward_pre_hook(keep) for slot in slots_of(model).values()]
    try:
        with _without_compiler():
            yield seen
    finally:
        for hook in hooks:
            hook.remove()


def drift(seed: nn.Module, h: Tensor) -> float:
    """Return the L2 norm of seed(h) - h, divided by that of h; in eval mode. 0 if both are 0, and inf or NaN as found.

    `h`: an input of the slot, see `inputs_of`.
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


def isolation_violations(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Return how many of the host's parameters get other gradients because of the seeds in TRAINING; 0 is right.

    `loss` makes a forward pass and returns the loss of one batch. It is called twice, from the same state: as the
    model is, and with these slots passing their input on. So this costs two forward and backward passes. A gradient
    differs if any bit does. A compiled model runs without the compiler, which may order sums otherwise for each stage.
    """
    learning = [slot for slot in slots_of(model).values() if slot.stage is Stage.TRAINING]
    host = {name: one for name, one in host_parameters(model).items() if one.requires_grad}
    if not learning or not host:
        return 0
    with _without_compiler(), ExitStack() as bypass:
        with_seeds = _gradients(model, host, loss)
        for slot in learning:
            bypass.enter_context(slot.bypassed())
        without = _gradients(model, host, loss)
    return sum(not _same(one, other) for one, other in zip(with_seeds, without, strict=True))


def _gradients(
    model: nn.Module, host: dict[str, nn.Parameter], loss: Callable[[], Tensor]
) -> tuple[Tensor | None, ...]:
    with _measured(model, keep_mode=True), torch.enable_grad():
        return torch.autograd.grad(loss(), list(host.values()), allow_unused=True)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else same_bits(one, other)


@contextmanager
def _measured(module: nn.Module, *, keep_mode: bool = False) -> Iterator[None]:
    """Restore modes, buffers and generators at the end of the block; in it, the module is in eval mode."""
    modes = [(one, one.training) for one in module.modules()]
    buffers = [
        (one, name, buffer, buffer.clone())
        for one, _ in modes
        for name, buffer in one._buffers.items()  # noqa: SLF001 - named_buffers leaves out the module
        if buffer is not None
    ]
    if not keep_mode:
        module.eval()
    try:
        with preserved_rng():
            yield
    finally:
        for one, training in modes:
            one.training = training
        with torch.no_grad():
            for one, name, buffer, kept in buffers:
                one._buffers[name] = buffer.copy_(kept)  # noqa: SLF001 - the pass may have replaced it


def _without_compiler() -> AbstractContextManager[object]:
    """Let compiled functions run as they are written, if the compiler is loaded. Importing it would take seconds."""
    # Not `torch._dynamo`: a stand-in has that name (process/light_start.py).
    return torch.compiler.set_stance("force_eager") if "torch._dynamo.eval_frame" in sys.modules else nullcontext()


def _wait_for(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
