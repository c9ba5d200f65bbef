"""Faults. Of hardware and software: they happen once in time, and a run that goes back does not meet them again.

Of data: they lie at positions, and a run that goes back meets them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.detection.training import Batch, Training

AT = 560
Change = Callable[[Training], None]
Spoil = Callable[[int, Batch, torch.Generator], Batch]


@dataclass(frozen=True)
class Fault:
    """`strike`: called once, at step `AT`. `gradients`: between backward pass and update, for `lasts` steps.

    `each`: before each of these steps. `spoil`: of the batches from position `AT` on, `lasts` of them. `ends`: called
    once after them. `lasts` 0: to the end of the run.
    """

    name: str
    strike: Change | None = None
    gradients: Change | None = None
    each: Change | None = None
    spoil: Spoil | None = None
    ends: Change | None = None
    lasts: int = 0

    def begin(self, training: Training) -> None:
        if self.spoil is not None:
            training.spoil = self.spoils

    def spoils(self, at: int, batch: Batch, draws: torch.Generator) -> Batch:
        is_on = at >= AT and (not self.lasts or at < AT + self.lasts)
        return self.spoil(at, batch, draws) if is_on and self.spoil is not None else batch

    def before(self, training: Training, step: int) -> None:
        if step == AT and self.strike is not None:
            self.strike(training)
        if self.each is not None and self._is_on(step):
            self.each(training)
        if self.ends is not None and step == AT + self.lasts:
            self.ends(training)

    def before_update(self, training: Training, step: int) -> None:
        if self.gradients is not None and self._is_on(step):
            self.gradients(training)

    def _is_on(self, step: int) -> bool:
        return step >= AT and (not self.lasts or step < AT + self.lasts)


# -- of weights and optimizer ------------------------------------------------------------------------------------------


def weights(training: Training) -> list[torch.Tensor]:
    return [one.data for one in training.model.parameters() if one.dim() > 1]


def _flip(bit: int, which: int = 0) -> Change:
    def strike(training: Training) -> None:
        found = weights(training)[which].view(-1)
        bits = found.view(torch.int32)
        bits[len(bits) // 3] ^= 1 << bit

    return strike


def _nan_layer(training: Training) -> None:
    weights(training)[-1].fill_(math.nan)


def _scaled(factor: float, which: int | None = None) -> Change:
    def strike(training: Training) -> None:
        for number, one in enumerate(weights(training)):
            if which is None or number == which % len(weights(training)):
                one.mul_(factor)

    return strike


def _other(training: Training) -> Training:
    """Return the same training with other first weights, and draw nothing from torch's generator."""
    with torch.random.fork_rng():
        return type(training)(training.seed + 1000, **training.options)


def _redrawn(training: Training) -> None:
    training.model.load_state_dict(_other(training).model.state_dict())


def _layer_redrawn(training: Training) -> None:
    found, made = weights(training), weights(_other(training))
    found[len(found) // 2].copy_(made[len(found) // 2])


def _rows_zeroed(training: Training) -> None:
    first = weights(training)[0]
    first[: max(1, 2 * len(first) // 3)] = 0.0


def _shuffled(training: Training) -> None:
    one = weights(training)[-1]
    one.copy_(one[torch.randperm(len(one), generator=torch.Generator().manual_seed(1))])


def _negated(training: Training) -> None:
    weights(training)[-1].neg_()


def _moments(change: Callable[[torch.Tensor], Any], *names: str) -> Change:
    def strike(training: Training) -> None:
        for state in training.optimizer.state.values():
            for name in names:
                if name in state and isinstance(state[name], torch.Tensor):
                    change(state[name])

    return strike


def _stale(training: Training) -> None:
    """Adam's step counts are lost, and its second moments are zero: the next updates are as large as first ones."""
    for state in training.optimizer.state.values():
        if "step" in state:
            state["step"].zero_()
            state["exp_avg_sq"].mul_(1e-6)


def _statistics(training: Training) -> None:
    for one in training.model.modules():
        if isinstance(one, nn.BatchNorm2d) and one.running_var is not None:
            one.weight.data.mul_(30.0)
            one.running_var.mul_(0.01)


def _rate(factor: float) -> Change:
    def strike(training: Training) -> None:
        for group in training.optimizer.param_groups:
            group["lr"] *= factor

    return strike


def _noise(size: float) -> Change:
    def strike(training: Training) -> None:
        for one in weights(training):
            one.add_(size * one.std() * torch.randn(one.shape, generator=torch.Generator().manual_seed(3)))

    return strike


def _jittered(size: float) -> Change:
    """Noise on the weights at each step: the loss stays high, and the gradients with it."""

    def strike(training: Training) -> None:
        for one in weights(training):
            one.add_(size * one.std() * torch.randn(one.shape))

    return strike


# -- of gradients ------------------------------------------------------------------------------------------------------


def _sign(which: int) -> Change:
    def gradients(training: Training) -> None:
        found = [one.grad for one in training.model.parameters() if one.grad is not None and one.dim() > 1]
        found[which % len(found)].neg_()

    return gradients


def _loss_scale(factor: float) -> Change:
    def gradients(training: Training) -> None:
        for one in training.model.parameters():
            if one.grad is not None:
                one.grad.mul_(factor)

    return gradients


# -- of data -----------------------------------------------------------------------------------------------------------


def _classes(target: torch.Tensor) -> int:
    return 10 if target.dim() == 1 else 40


def _random_targets(at: int, batch: Batch, draws: torch.Generator) -> Batch:
    inputs, target = batch
    if target.is_floating_point():
        return inputs, 3.0 * torch.randn(target.shape, generator=draws)
    return inputs, torch.randint(_classes(target), target.shape, generator=draws)


def _permuted(at: int, batch: Batch, draws: torch.Generator) -> Batch:
    inputs, target = batch
    return inputs, -target if target.is_floating_point() else (target + 3) % _classes(target)


def _shifted(at: int, batch: Batch, draws: torch.Generator) -> Batch:
    """Inputs and targets come from different samples: a loader that lost its alignment."""
    return batch[0], batch[1].roll(1, 0)


def _repeated(at: int, batch: Batch, draws: torch.Generator) -> Batch:
    """One sample again and again, with a wrong target."""
    inputs, target = batch
    wrong = target[:1] + 1.0 if target.is_floating_point() else (target[:1] + 1) % _classes(target)
    return inputs[:1].expand_as(inputs), wrong.expand_as(target)


def _amplified(factor: float) -> Spoil:
    def spoil(at: int, batch: Batch, draws: torch.Generator) -> Batch:
        inputs, target = batch
        return (inputs * factor, target) if inputs.is_floating_point() else (inputs.flip(0), target)

    return spoil


FAULTS: tuple[Fault, ...] = (
    Fault("weight bit 30 flipped, first layer", strike=_flip(30)),
    Fault("weight bit 30 flipped, last layer", strike=_flip(30, -1)),
    Fault("weight bit 29 flipped", strike=_flip(29)),
    Fault("layer of NaN", strike=_nan_layer),
    Fault("all weights redrawn", strike=_redrawn),
    Fault("one layer redrawn", strike=_layer_redrawn),
    Fault("weights times 8", strike=_scaled(8.0)),
    Fault("weights times 0.05", strike=_scaled(0.05)),
    Fault("last layer negated", strike=_negated),
    Fault("last layer's rows shuffled", strike=_shuffled),
    Fault("two thirds of the first rows zeroed", strike=_rows_zeroed),
    Fault("noise of 1.5 deviations on weights", strike=_noise(1.5)),
    Fault("second moments zeroed", strike=_moments(torch.Tensor.zero_, "exp_avg_sq")),
    Fault("moments times 1000", strike=_moments(lambda one: one.mul_(1000.0), "exp_avg", "momentum_buffer")),
    Fault("Adam's counts lost", strike=_stale),
    Fault("norm layers spoiled", strike=_statistics),
    Fault("rate x30 for 60 steps", strike=_rate(30.0), ends=_rate(1 / 30), lasts=60),
    Fault("rate x30 for 150 steps", strike=_rate(30.0), ends=_rate(1 / 30), lasts=150),
    Fault("rate x1000 for 20 steps", strike=_rate(1000.0), ends=_rate(1 / 1000), lasts=20),
    Fault("last layer's gradient sign flipped, 100 steps", gradients=_sign(-1), lasts=100),
    Fault("first layer's gradient sign flipped, 200 steps", gradients=_sign(0), lasts=200),
    Fault("loss scale x1000 wrong for 30 steps", gradients=_loss_scale(1000.0), lasts=30),
    Fault("loss scale x1000 wrong for 30 steps, Adam", gradients=_loss_scale(1000.0), lasts=30),
    Fault("drift: weights 1 % larger each step, 200 steps", each=_scaled(1.01), lasts=200),
    Fault("drift: weights 1 % smaller each step, 200 steps", each=_scaled(0.99), lasts=200),
    Fault("noise on the weights each step, 200 steps", each=_jittered(0.15), lasts=200),
    Fault("noise on the weights each step, 200 steps, convolution", each=_jittered(0.15), lasts=200),
    Fault("targets random, 20 batches", spoil=_random_targets, lasts=20),
    Fault("targets random, 200 batches", spoil=_random_targets, lasts=200),
    Fault("labels permuted, 20 batches", spoil=_permuted, lasts=20),
    Fault("labels permuted, 200 batches", spoil=_permuted, lasts=200),
    Fault("inputs and targets misaligned, 100 batches", spoil=_shifted, lasts=100),
    Fault("one wrong sample repeated, 60 batches", spoil=_repeated, lasts=60),
    Fault("inputs times 50, 30 batches", spoil=_amplified(50.0), lasts=30),
    Fault("targets random to the end", spoil=_random_targets),
    Fault("last layer's gradient sign flipped to the end", gradients=_sign(-1)),
)
