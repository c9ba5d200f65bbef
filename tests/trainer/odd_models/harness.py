"""Train a model under the recorder and in a plain torch loop, and compare every bit of the result.

The plain loop is what a user would write: `loss.backward()`, `clip_grad_norm_`, `optimizer.step()`, `zero_grad()`. It
takes the same batches in the same order from a DataLoader of its own. Nothing of tolariad runs in it but the seed of
the draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from journal import Reader
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event
from tolariad.trainer.data.randomness import derived_seed

RNG_SEED, EPOCHS, BATCHES, BATCH_SIZE, WIDTH = 11, 2, 5, 4, 6
RATE = 0.05
Batch = tuple[Tensor, Tensor]


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a model with one output for each sample."""
    inputs, targets = batch
    return functional.mse_loss(model(inputs), targets)


def momentum(model: nn.Module) -> Optimizer:
    """The default optimizer."""
    return SGD(model.parameters(), lr=RATE, momentum=0.9)


def numbers() -> TensorDataset:
    """Inputs (n, WIDTH) and targets (n, 1), float32."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(BATCHES * BATCH_SIZE, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs[:, :2].sum(1, keepdim=True).tanh())


def words() -> TensorDataset:
    """Indices (n, WIDTH) below 12, one of them repeated, and targets (n, 1)."""
    generator = torch.Generator().manual_seed(4)
    indices = torch.randint(0, 12, (BATCHES * BATCH_SIZE, WIDTH), generator=generator)
    indices[:, 1] = indices[:, 0]
    return TensorDataset(indices, indices.float().mean(1, keepdim=True) / 12)


@dataclass(frozen=True)
class Odd:
    """One valid way to train. `clip`: the greatest norm, None without clipping; `on_step_end` is the task's hook."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Batch], Tensor] = squared_error
    optimizer: Callable[[nn.Module], Optimizer] = momentum
    clip: float | None = 0.5
    accumulate: int = 1
    data: Callable[[], TensorDataset] = numbers
    on_step_end: Callable[[Any], None] | None = None
    forward: Callable[[], Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """The result of training: every tensor of model and optimizer, losses and norms, random state."""

    tensors: dict[str, Tensor]
    losses: list[float]
    norms: list[float]
    draws: Tensor


def made(odd: Odd) -> tuple[nn.Module, Optimizer]:
    """Return model and optimizer, the same at each call."""
    torch.manual_seed(RNG_SEED)
    model = odd.model()
    return model, odd.optimizer(model)


def loader(odd: Odd) -> DataLoader[Any]:
    """Return the batches in order, with a separate generator."""
    return DataLoader(odd.data(), batch_size=BATCH_SIZE, generator=torch.Generator())


def clipped(model: nn.Module, odd: Odd) -> Tensor:
    """Clip as torch does. Return the norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), odd.clip or 0.0)


def plain(odd: Odd) -> Trained:
    """Train by a plain loop."""
    model, optimizer = made(odd)
    model.train()
    seed = derived_seed(RNG_SEED, "training")
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.manual_seed(seed)
    losses: list[float] = []
    norms: list[float] = []
    for _ in range(EPOCHS):
        for group in _grouped(loader(odd), odd.accumulate):
            parts = [_forward(model, odd, batch, len(group)) for batch in group]
            losses.append(sum(part.item() for part in parts) / len(parts))
            if odd.clip is not None:
                norms.append(clipped(model, odd).item())
            optimizer.step()
            if odd.on_step_end is not None:
                odd.on_step_end(model)
            optimizer.zero_grad()
    return Trained(tensors_of(model, optimizer), losses, norms, torch.get_rng_state())


def _forward(model: nn.Module, odd: Odd, batch: Batch, parts: int) -> Tensor:
    loss = odd.loss(model, batch)
    (loss / parts if parts > 1 else loss).backward()
    return loss.detach()


def _grouped(batches: DataLoader[Any], size: int) -> Iterator[tuple[Batch, ...]]:
    every = iter(batches)
    while group := tuple(islice(every, size)):
        yield group


class OddTask:
    """The same as a task of the library. It keeps the random state of the last step, which the library gives back."""

    def __init__(self, odd: Odd) -> None:
        self._odd = odd
        self.draws = torch.empty(0)
        self.loss = odd.loss
        if odd.clip is not None:
            self.clip_gradients = lambda model: clipped(model, odd)

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, tuple[Any, int]]:
        """Nothing is validated."""
        return {}

    def on_step_end(self, model: nn.Module, step: int) -> None:
        """The odd hook."""
        if self._odd.on_step_end is not None:
            self._odd.on_step_end(model)
        self.draws = torch.get_rng_state()


def recorded(odd: Odd, run_dir: Path) -> Trained:
    """Train under the recorder, in this process."""
    model, optimizer = made(odd)
    task = OddTask(odd)
    settings = {
        "rng_seed": RNG_SEED,
        "torch_threads": torch.get_num_threads(),
        "accumulate": odd.accumulate,
        "learning_rate": {"base_lr": optimizer.param_groups[0]["lr"], "policy": "constant", "warmup_epochs": 0},
        "checkpoint": {"throttle_mb_s": None},
        "journal": {"segment_bytes": 65_536},
        **odd.settings,
    }
    result = Tolaria({"tolaria": settings}, run_dir=run_dir).train(
        model, loader(odd), None, EPOCHS, task=task, optimizer=optimizer
    )
    assert result.phase == "completed"
    steps = [e for one in Reader(run_dir / "journal") if isinstance(e := decode_event(one.event), m.StepCompleted)]
    norms = [step.grad_norm for step in steps] if odd.clip is not None else []
    return Trained(tensors_of(model, optimizer), [step.loss for step in steps], norms, task.draws)


def tensors_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return parameters, buffers and the optimizer's state by name."""
    found = {name: one.detach() for name, one in (*model.named_parameters(), *model.named_buffers())}
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"state {number}.{key}"] = torch.as_tensor(value)
    return found


def different(one: Trained, other: Trained) -> list[str]:
    """Return the names of everything that differs in a bit."""
    found = sorted(one.tensors.keys() ^ other.tensors.keys())
    found += [
        name for name in one.tensors.keys() & other.tensors.keys() if not _same(one.tensors[name], other.tensors[name])
    ]
    pairs = (("losses", one.losses, other.losses), ("norms", one.norms, other.norms))
    found += [f"{name}: {ours} {theirs}" for name, ours, theirs in pairs if ours != theirs]
    return found if torch.equal(one.draws, other.draws) else [*found, "draws"]


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare bits: the sign of zero counts, and NaN equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return (
        one.contiguous().numpy(force=True).tobytes() == other.contiguous().numpy(force=True).tobytes()
        if (one.dtype is not torch.bfloat16)
        else torch.equal(one.contiguous().view(torch.int16), other.contiguous().view(torch.int16))
    )
