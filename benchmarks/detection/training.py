"""A small training whose whole state is one object: a deep copy of it, with torch's generator, is an exact pin.

Batches depend on the seed and their position alone. What a training changes in mid-run depends on the position too, so
a run that went back meets the same changes again.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.tasks.digits import read_digits

TESTED, HELD = 360, 240
Batch = tuple[torch.Tensor, torch.Tensor]


@cache
def digits() -> tuple[Batch, Batch, Batch]:
    """Digits to train with, to validate with, and to test with."""
    images, labels = read_digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(4711))
    images, labels = images[order], labels[order]
    parts = ((0, -TESTED - HELD), (-TESTED - HELD, -TESTED), (-TESTED, None))
    train, held, tested = ((images[first:last], labels[first:last]) for first, last in parts)
    return train, held, tested


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between each two."""
    layers: list[nn.Module] = []
    for fed, width in pairwise(widths):
        layers += [nn.Linear(fed, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Training:
    """A training of `steps` batches, `epoch` of them in an epoch. Something changes at position `change`, if anything.

    `spoil` is a fault of the data: it gets a batch and its position and returns another batch.
    """

    steps = 900
    epoch = 400
    change = 420
    rate = 2e-3
    size = 32
    spoil: Any = None

    def __init__(self, seed: int, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)
        self.options = options
        self.seed = seed
        torch.manual_seed(seed)
        self.model = self.network()
        self.optimizer: torch.optim.Optimizer = self.made(self.model.parameters())
        self.begun()

    def network(self) -> nn.Module:
        return mlp(64, 64, 64, 10)

    def made(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.rate, fused=True)

    def begun(self) -> None:
        """Make what a subclass needs beside the model."""

    def before(self, at: int) -> None:
        """Change what changes at this position."""

    def after(self, at: int) -> None:
        """Follow the update."""

    def loss(self, at: int) -> torch.Tensor:
        raise AssertionError(f"{self} has a loss")

    def held(self) -> float:
        """Return the loss of the validation."""
        raise AssertionError(f"{self} has a validation")

    def measure(self) -> float:
        """Return how good the model is; greater is better."""
        return -self.held()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def draws(self, at: int) -> torch.Generator:
        """Return the generator of the batch at this position."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + at)

    def rows(self, at: int, below: int, size: int | None = None) -> torch.Tensor:
        return torch.randint(below, (size or self.size,), generator=self.draws(at))

    def spoilt(self, at: int, batch: Batch) -> Batch:
        return batch if self.spoil is None else self.spoil(at, batch, self.draws(-at - 1))

    def is_changed(self, at: int) -> bool:
        return at >= self.change

    def with_model(self, model: nn.Module) -> Training:
        """Return this training with a copy of another model: the same objective, other weights."""
        other = copy.copy(self)
        other.model = copy.deepcopy(model)
        return other


class Digits(Training):
    """Digits by a perceptron. Subclasses change inputs, labels or the criterion."""

    def batch(self, at: int) -> Batch:
        images, labels = digits()[0]
        rows = self.rows(at, len(images))
        return images[rows], labels[rows]

    def inputs(self, images: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        return images

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        return functional.cross_entropy(found, labels)

    def loss(self, at: int) -> torch.Tensor:
        images, labels = self.spoilt(at, self.batch(at))
        return self.criterion(self.model(self.inputs(images, labels, at)), labels, at)

    @torch.no_grad()
    def _evaluated(self, part: Batch) -> tuple[float, float]:
        self.model.eval()
        found = self.model(part[0])
        self.model.train()
        return float(functional.cross_entropy(found, part[1])), float((found.argmax(1) == part[1]).float().mean())

    def held(self) -> float:
        return self._evaluated(digits()[1])[0]

    def measure(self) -> float:
        return self._evaluated(digits()[2])[1]


class Convolved(Digits):
    """Digits by a small convolutional network with BatchNorm, SGD with momentum."""

    rate = 0.03

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
        )  # fmt: skip

    def made(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9, fused=True)


class Regression(Training):
    """A smooth function of four numbers, with noise; squared error."""

    noise = 0.1

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def begun(self) -> None:
        self.mixed = torch.randn(4, 3, generator=torch.Generator().manual_seed(99))

    def target(self, inputs: torch.Tensor, at: int) -> torch.Tensor:
        return torch.sin(inputs @ self.mixed).sum(1, keepdim=True)

    def drawn(self, at: int, size: int) -> torch.Tensor:
        return torch.randn(size, 4, generator=self.draws(at))

    def batch(self, at: int) -> Batch:
        inputs = self.drawn(at, self.size)
        target = self.target(inputs, at)
        return inputs, target + self.noise * torch.randn(target.shape, generator=self.draws(-at - 7))

    def loss(self, at: int) -> torch.Tensor:
        inputs, target = self.spoilt(at, self.batch(at))
        return functional.mse_loss(self.model(inputs), target)

    @torch.no_grad()
    def held(self) -> float:
        inputs = torch.randn(256, 4, generator=torch.Generator().manual_seed(5))
        return float(functional.mse_loss(self.model(inputs), self.target(inputs, self.steps)))

    def measure(self) -> float:
        return -math.log(max(self.held(), 1e-12))
