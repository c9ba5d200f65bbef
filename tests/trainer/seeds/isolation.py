"""An oracle of isolation: two passes of one batch, with the seeds in TRAINING and without them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.seeds import SeedSlot, host_parameters, slots_of
from tolariad.trainer.seeds.slot import Path


def isolation_violations(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Return how many of the host's parameters get other gradients because of the seeds in TRAINING; 0 is right.

    `loss` makes a forward pass and returns the loss of one batch. It is called twice, from the same state.
    """
    learning = [slot for slot in slots_of(model).values() if slot.stage is Stage.TRAINING]
    host = {name: one for name, one in host_parameters(model).items() if one.requires_grad}
    # The compiler may order sums otherwise for each stage.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo.eval_frame" in sys.modules else nullcontext()
    with eager, ExitStack() as bypass:
        with_seeds = _gradients(model, host, loss)
        for slot in learning:
            bypass.enter_context(_bypassed(slot))
        without = _gradients(model, host, loss)
    return sum(not _same(one, other) for one, other in zip(with_seeds, without, strict=True))


@contextmanager
def _bypassed(slot: SeedSlot) -> Iterator[None]:
    path, slot._path = slot._path, int(Path.PASS)
    try:
        yield
    finally:
        slot._path = path


def _gradients(
    model: nn.Module, host: dict[str, nn.Parameter], loss: Callable[[], Tensor]
) -> tuple[Tensor | None, ...]:
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with preserved_rng():
        found = torch.autograd.grad(loss(), list(host.values()), allow_unused=True)
    for buffer, before in kept:
        buffer.copy_(before)
    return found


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else same_bits(one, other)
