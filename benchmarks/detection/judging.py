"""Healthy trainings that judge: thirty and more of fifteen kinds. None of them chose a constant."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.detection.choosing import Healthy, of
from benchmarks.detection.judging_more import (
    Adapted,
    Denoised,
    Experts,
    Longer,
    Queued,
    Replayed,
    Rewarded,
    Swapped,
    Tied,
    Weaker,
)  # fmt: skip
from benchmarks.detection.language import Attending, Language
from benchmarks.detection.training import Batch, Convolved, Digits, Training, mlp


class Smoothed(Digits):
    """Label smoothing is switched on."""

    share = 0.1

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        share = self.share if self.is_changed(at) else 0.0
        return functional.cross_entropy(found, labels, label_smoothing=share)


class Augmented(Digits):
    """Augmentation is switched on: shifts by up to `reach` pixels, noise, or a part cut out."""

    how = "shift"

    def inputs(self, images: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        if not self.is_changed(at):
            return images
        if self.how == "noise":
            return images + 0.5 * torch.randn_like(images)
        shown = images.view(-1, 8, 8).clone()
        if self.how == "cut":
            for number, place in enumerate(torch.randint(5, (len(shown), 2)).tolist()):
                shown[number, place[0] : place[0] + 4, place[1] : place[1] + 4] = 0.0
            return shown.flatten(1)
        by = torch.randint(-2, 3, (2,)).tolist()
        return shown.roll(by, (1, 2)).flatten(1)


class Attacked(Digits):
    """Adversarial examples are switched on: one step of the gradient's sign."""

    size_of_step = 0.1

    def inputs(self, images: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        if not self.is_changed(at):
            return images
        with torch.enable_grad():
            shown = images.clone().requires_grad_()
            loss = functional.cross_entropy(self.model(shown), labels)
            (gradient,) = torch.autograd.grad(loss, shown)
        return images + self.size_of_step * gradient.sign()


class _Rounded(nn.Linear):
    """A linear layer whose weights are rounded to `levels` steps, with a straight-through gradient; 0: as they are."""

    levels = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if self.levels:
            step = weight.detach().abs().max() / self.levels
            weight = weight + ((weight / step).round() * step - weight).detach()
        return functional.linear(given, weight, self.bias)


class Quantised(Digits):
    """Quantisation-aware training is switched on."""

    levels = 3

    def network(self) -> nn.Module:
        return nn.Sequential(_Rounded(64, 64), nn.ReLU(), _Rounded(64, 64), nn.ReLU(), _Rounded(64, 10))

    def loss(self, at: int) -> torch.Tensor:
        for one in self.model:
            if isinstance(one, _Rounded):
                one.levels = self.levels if self.is_changed(at) else 0
        return super().loss(at)


class Widened(Digits):
    """New classes come: from `few` to ten. The validation has all ten."""

    few = 5

    def batch(self, at: int) -> Batch:
        images, labels = super().batch(at)
        if self.is_changed(at):
            return images, labels
        known = labels < self.few
        return images[known], labels[known]


class Loud(Digits):
    """A rare kind of batch comes in threes, forty times as loud: the weight of a rare source."""

    every = 150

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        is_loud = at > 500 and at % self.every < 3
        return functional.cross_entropy(found / (1.0 if not is_loud else 0.3), labels) * (40.0 if is_loud else 1.0)


class Mixed(Digits):
    """Mixup is switched on."""

    def loss(self, at: int) -> torch.Tensor:
        if not self.is_changed(at):
            return super().loss(at)
        images, labels = self.spoilt(at, self.batch(at))
        share, order = float(torch.rand(())), torch.randperm(len(images))
        found = self.model(share * images + (1.0 - share) * images[order])
        mixed = functional.cross_entropy(found, labels[order])
        return share * functional.cross_entropy(found, labels) + (1.0 - share) * mixed


class Dropped(Digits):
    """Dropout is raised from nothing to `share`."""

    share = 0.5

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.0), nn.Linear(96, 64), nn.ReLU(), nn.Dropout(0.0),
            nn.Linear(64, 10),
        )  # fmt: skip

    def loss(self, at: int) -> torch.Tensor:
        for one in self.model:
            if isinstance(one, nn.Dropout):
                one.p = self.share if self.is_changed(at) else 0.0
        return super().loss(at)


class Taught(Digits):
    """Distillation whose teacher is replaced by a stronger, or a warmer, one."""

    warm = 3.0

    def begun(self) -> None:
        self.teachers = [_teacher(self.seed, steps) for steps in (30, 400)]

    def loss(self, at: int) -> torch.Tensor:
        images, _ = self.spoilt(at, self.batch(at))
        with torch.no_grad():
            target = (self.teachers[self.is_changed(at)](images) / (self.warm if self.is_changed(at) else 1.0)).softmax(
                1
            )
        return functional.cross_entropy(self.model(images), target)


def _teacher(seed: int, steps: int) -> nn.Module:
    torch.manual_seed(seed + 77)
    made = Digits(seed + 77)
    for at in range(steps):
        made.optimizer.zero_grad()
        made.loss(at).backward()
        made.optimizer.step()
    return made.model.requires_grad_(requires_grad=False)


class Resized(Digits):
    """The batch size changes."""

    after_size = 4

    def batch(self, at: int) -> Batch:
        images, labels = super().batch(at)
        return (images[: self.after_size], labels[: self.after_size]) if self.is_changed(at) else (images, labels)


class Averaged(Digits):
    """A mean teacher: consistency with an average of the weights, on noisy images, is switched on."""

    weight = 5.0

    def network(self) -> nn.Module:
        return nn.ModuleDict({"student": mlp(64, 64, 64, 10), "teacher": mlp(64, 64, 64, 10)})

    def begun(self) -> None:
        self.model["teacher"].load_state_dict(self.model["student"].state_dict())

    def loss(self, at: int) -> torch.Tensor:
        images, labels = self.spoilt(at, self.batch(at))
        found = self.model["student"](images)
        loss = functional.cross_entropy(found, labels)
        if self.is_changed(at):
            with torch.no_grad():
                target = self.model["teacher"](images)
            noisy = self.model["student"](images + 0.3 * torch.randn_like(images))
            loss = loss + self.weight * functional.mse_loss(noisy, target)
        return loss

    def after(self, at: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.model["teacher"].parameters(), self.model["student"].parameters(), strict=True):
                slow.lerp_(fast, 0.02)

    def _evaluated(self, part: Batch) -> tuple[float, float]:
        return Digits._evaluated(_Of(self.model["student"]), part)


class _Of:
    """Something whose model is evaluated."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model


class Cycled(Digits):
    """One cycle of the rate: up by `times` until the change, then down to nothing."""

    times = 15.0

    def before(self, at: int) -> None:
        up = at / self.change if at < self.change else (self.steps - at) / (self.steps - self.change)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * (0.05 + self.times * max(0.0, up))


class Ramped(Digits):
    """The weight of the loss is raised, as when a task is weighed anew."""

    times = 10.0

    def criterion(self, found: torch.Tensor, labels: torch.Tensor, at: int) -> torch.Tensor:
        return functional.cross_entropy(found, labels) * (self.times if self.is_changed(at) else 1.0)


class Reweighed(Language):
    """The same, of a language model."""

    def loss(self, at: int) -> torch.Tensor:
        return super().loss(at) * (10.0 if self.is_changed(at) else 1.0)


def both(first: type[Training], second: type[Training]) -> type[Training]:
    """Return the change of the first class in the network of the second."""
    return type(f"{first.__name__}{second.__name__}", (first, second), {})


JUDGING: tuple[Healthy, ...] = (
    of("label smoothing", "0.1", Smoothed),
    of("label smoothing", "0.2, convolution", both(Smoothed, Convolved), share=0.2),
    of("augmentation", "shifts", Augmented),
    of("augmentation", "noise, convolution", both(Augmented, Convolved), how="noise"),
    of("augmentation", "a part cut out", Augmented, how="cut"),
    of("adversarial examples", "0.1", Attacked),
    of("adversarial examples", "0.3, convolution", both(Attacked, Convolved), size_of_step=0.3),
    of("quantisation", "seven levels", Quantised),
    of("quantisation", "three levels", Quantised, levels=1),
    of("new classes", "from five", Widened),
    of("new classes", "from eight, convolution", both(Widened, Convolved), few=8),
    of("loud batches in threes", "each 150", Loud),
    of("loud batches in threes", "each 35, convolution", both(Loud, Convolved), every=35),
    of("mixup", "perceptron", Mixed),
    of("mixup", "convolution", both(Mixed, Convolved)),
    of("sequences twice as long", "GRU", Longer),
    of("sequences twice as long", "language, attention", Tied, kind=Attending, width=32),
    of("dropout", "raised to 0.5", Dropped),
    of("dropout", "raised to 0.8", Dropped, share=0.8),
    of("teacher changed", "stronger, warm", Taught),
    of("teacher changed", "stronger, hot", Taught, warm=8.0),
    of("replay buffer refilled", "other states", Replayed),
    of("reward scale", "x10", Rewarded),
    of("adapter attached", "rotated digits", Adapted),
    of("batch size", "32 to 4", Resized),
    of("batch size", "32 to 2, convolution", both(Resized, Convolved), after_size=2),
    of("optimizer switched", "to SGD with momentum", Swapped),
    of("optimizer switched", "of a language model, to RMSprop", Weaker, width=48),
    of("mean teacher", "switched on", Averaged),
    of("router of experts", "balance on", Experts),
    of("contrastive queue", "four times as long", Queued),
    of("noise schedule", "harder", Denoised),
    of("one cycle", "x15", Cycled),
    of("loss weight", "x10", Ramped),
    of("loss weight", "x10 of a language model", Reweighed),
)
