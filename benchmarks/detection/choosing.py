"""Healthy trainings of twelve kinds that chose the constants. None of them judges."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from benchmarks.detection.language import Attending, Language, Recurrent
from benchmarks.detection.training import Convolved, Digits, Regression, Training


class Healthy(NamedTuple):
    """A healthy training. `make` builds it from a seed."""

    kind: str
    name: str
    make: Callable[[int], Training]


def of(kind: str, name: str, made: type[Training], /, **options: Any) -> Healthy:
    return Healthy(kind, name, partial(made, **options))


class Weighted(Digits):
    """Class weights are switched on: three classes count `weight` times."""

    weight = 10.0

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        weights = torch.ones(10)
        if self.is_changed(at):
            weights[:3] = self.weight
        return functional.cross_entropy(found, labels, weights) * float(weights.mean())


class Heated(Digits):
    """The logits are divided by a temperature from some step on."""

    heat = 4.0

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        return functional.cross_entropy(found / (self.heat if self.is_changed(at) else 1.0), labels)


class Mined(Digits):
    """Only the hardest batches are kept: half of a doubled batch, by its loss."""

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        losses = functional.cross_entropy(found, labels, reduction="none")
        return losses.topk(len(losses) // 4).values.mean() if self.is_changed(at) else losses.mean()


class Thawed(Digits):
    """The first layer is frozen at the beginning."""

    def before(self, at: int) -> None:
        self.model[0].requires_grad_(at >= self.change)


class Turned(Digits):
    """Half of the images are turned by a right angle from some step on."""

    share = 0.5

    def inputs(self, images: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        if not self.is_changed(at):
            return images
        turned = images.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1)
        return torch.where(torch.rand(len(images), 1) < self.share, turned, images)


class Rescaled(Digits):
    """Another normalisation of the inputs."""

    scale, shift = 0.4, 0.3

    def inputs(self, images: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        return images * self.scale + self.shift if self.is_changed(at) else images


class Dirty(Digits):
    """A source with wrong labels joins: `share` of them."""

    share = 0.3

    def batch(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().batch(at)
        if not self.is_changed(at):
            return images, labels
        draws = self.draws(-at - 3)
        is_wrong = torch.rand(len(labels), generator=draws) < self.share
        return images, torch.where(is_wrong, torch.randint(10, labels.shape, generator=draws), labels)


class Penalised(Digits):
    """A penalty on the weights joins the loss."""

    weight = 0.01

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        loss = functional.cross_entropy(found, labels)
        if self.is_changed(at):
            loss = loss + self.weight * sum(one.abs().sum() for one in self.model.parameters())
        return loss


class Restarted(Digits):
    """Cosine restarts of the rate, at an announced period; the first one comes at `change`."""

    rate = 2e-3
    times = 10.0

    def before(self, at: int) -> None:
        since = (at % self.change) / self.change
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * self.times * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * since)))


class Moved(Regression):
    """The inputs' distribution moves."""

    by = 1.5

    def drawn(self, at: int, size: int) -> torch.Tensor:
        return super().drawn(at, size) * (1.6 if self.is_changed(at) else 1.0) + (self.by if self.is_changed(at) else 0)


class Other(Language):
    """Another text joins: half of the samples are of a program's source."""

    def shown(self, at: int) -> torch.Tensor:
        from benchmarks.detection.language import text

        if not self.is_changed(at):
            return super().shown(at)
        other = text("tolariad/core/calc/detection/envelope.py")
        half = self.size // 2
        return torch.cat((super().shown(at)[:half], self.samples(-at - 2, other, self.size - half, self.length)))


class Masked(Language):
    """A share of the signs of the context is hidden."""

    share = 0.3

    def cost(self, given: torch.Tensor, target: torch.Tensor, at: int) -> torch.Tensor:
        if self.is_changed(at):
            given = torch.where(torch.rand(given.shape) < self.share, 1, given)
        return super().cost(given, target, at)


CHOOSING: tuple[Healthy, ...] = (
    of("class weights", "x10 on three", Weighted),
    of("class weights", "x4 on three, convolution", type("W", (Weighted, Convolved), {}), weight=4.0),
    of("temperature", "4", Heated),
    of("temperature", "15", Heated, heat=15.0),
    of("hard samples", "the hardest quarter", Mined),
    of("hard samples", "convolution", type("M", (Mined, Convolved), {})),
    of("layer thawed", "the first", Thawed),
    of("turned images", "half", Turned),
    of("turned images", "all", Turned, share=1.0),
    of("normalisation", "0.4 x + 0.3", Rescaled),
    of("normalisation", "3 x", Rescaled, scale=3.0, shift=0.0),
    of("wrong labels join", "30 %", Dirty),
    of("wrong labels join", "60 %, convolution", type("D", (Dirty, Convolved), {}), share=0.6),
    of("penalty", "0.01 L1", Penalised),
    of("penalty", "0.001 L1", Penalised, weight=0.001),
    of("restarts", "cosine, x10", Restarted),
    of("restarts", "cosine, x30", Restarted, times=30.0),
    of("inputs move", "by 1.5", Moved),
    of("inputs move", "by 4", Moved, by=4.0),
    of("another text", "window", Other),
    of("another text", "GRU", Other, kind=Recurrent, width=24, length=12),
    of("masked context", "30 %", Masked),
    of("masked context", "70 %, attention", Masked, kind=Attending, share=0.7, width=32),
    of("plain", "digits", Digits),
    of("plain", "convolution", Convolved),
    of("plain", "regression", Regression),
    of("plain", "language", Language),
    of("plain", "GRU", Language, kind=Recurrent, width=24, length=12),
    of("plain", "attention", Language, kind=Attending, width=32),
    of("plain", "digits, SGD at a batch of four", Digits, size=4, rate=5e-4),
)
