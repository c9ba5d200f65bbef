"""Trainings on digits and made-up data: ordinary ones, memorised ones, two heads, curricula, restarts, fine-tuning."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from tests.study.trainings.base import Run, accuracy, digits, draw, mlp, set_rate, stepped

_OPTIMIZERS = {
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate),
    "adamw": lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05),
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
}


def classify(
    seed: int, *, steps: int = 2000, batch: int = 64, optimizer: str = "adam", rate: float = 2e-3, dropout: float = 0.0,
    wrong: float = 0.0, warm_up: int = 0,
) -> Run:  # fmt: skip
    """Digits by a perceptron; a share `wrong` of the labels is drawn at random."""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    noisy = torch.where(torch.rand(len(labels)) < wrong, torch.randint(10, labels.shape), labels)
    model = mlp(64, 64, 64, 10, dropout=dropout)
    made = _OPTIMIZERS[optimizer](model.parameters(), rate)
    for step in range(steps):
        if warm_up:
            set_rate(made, rate * min(1.0, (step + 1) / warm_up))
        at = draw(batch, len(images))
        yield from stepped(functional.cross_entropy(model(images[at]), noisy[at]), made)
    return accuracy(model, test_images, test_labels)


def convolve(seed: int, *, steps: int = 800, batch: int = 32, rate: float = 0.05) -> Run:
    """Digits by a small convolutional network with BatchNorm, SGD with momentum, cosine to zero."""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    made = _OPTIMIZERS["momentum"](model.parameters(), rate)
    for step in range(steps):
        set_rate(made, 0.5 * rate * (1.0 + math.cos(math.pi * step / steps)))
        at = draw(batch, len(images))
        yield from stepped(functional.cross_entropy(model(images[at]), labels[at]), made)
    return accuracy(model, test_images, test_labels)


def regress(seed: int, *, steps: int = 2000, batch: int = 32, tail: float = 3.0, rate: float = 1e-3) -> Run:
    """A smooth function with noise of Student's t: `tail` degrees of freedom, squared error."""
    torch.manual_seed(seed)
    model, made_up = mlp(4, 64, 64, 1, act=nn.Tanh), torch.randn(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    noise = torch.distributions.StudentT(tail)
    for _ in range(steps):
        inputs = torch.randn(batch, 4)
        target = torch.sin(inputs @ made_up).sum(1, keepdim=True) + 0.3 * noise.sample((batch, 1))
        yield from stepped(functional.mse_loss(model(inputs), target), optimizer)
    inputs = torch.randn(512, 4)
    with torch.no_grad():
        return -float(functional.mse_loss(model(inputs), torch.sin(inputs @ made_up).sum(1, keepdim=True)))


def modular(seed: int, *, steps: int = 2500, modulus: int = 23, batch: int = 128) -> Run:
    """Addition modulo a prime from 60 % of its table: learnt by heart first, understood later or not."""
    torch.manual_seed(seed)
    pairs = torch.cartesian_prod(torch.arange(modulus), torch.arange(modulus))
    pairs = pairs[torch.randperm(len(pairs))]
    labels, known = pairs.sum(1) % modulus, int(0.6 * len(pairs))
    model = nn.Sequential(nn.Embedding(modulus, 32), nn.Flatten(), *mlp(64, 128, modulus))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.5)
    for _ in range(steps):
        at = draw(batch, known)
        yield from stepped(functional.cross_entropy(model(pairs[at]), labels[at]), optimizer)
    return accuracy(model, pairs[known:], labels[known:])


def memorise(
    seed: int, *, steps: int = 3000, samples: int = 64, rate: float = 5e-3, optimizer: str = "adam", batch: int = 16
) -> Run:
    """Few samples with random labels, learnt by heart down to 1e-6; Adam then jumps by orders of magnitude."""
    torch.manual_seed(seed)
    images, labels = digits()[0][:samples], torch.randint(10, (samples,))
    model = mlp(64, 128, 128, 10)
    made = _OPTIMIZERS[optimizer](model.parameters(), rate)
    for _ in range(steps):
        at = draw(batch, samples)
        yield from stepped(functional.cross_entropy(model(images[at]), labels[at]), made)
    return accuracy(model, images, labels)


def two_heads(
    seed: int, *, steps: int = 3000, share: float = 0.05, times: float = 5.0, batch: int = 64, rate: float = 1e-3
) -> Run:
    """A common trunk; every now and then a batch of a second task whose loss weighs `times` as much.

    Returns the second task's accuracy: digits whose pixels lie in another order, with labels of their own.
    """
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    pixels, names = torch.randperm(64), torch.randperm(10)
    trunk, first, second = mlp(64, 96, 64), nn.Linear(64, 10), nn.Linear(64, 10)
    optimizer = torch.optim.Adam([*trunk.parameters(), *first.parameters(), *second.parameters()], lr=rate)
    for _ in range(steps):
        at = draw(batch, len(images))
        if torch.rand(()) < share:
            found = second(torch.relu(trunk(images[at][:, pixels])))
            yield from stepped(times * functional.cross_entropy(found, names[labels[at]]), optimizer, "second")
        else:
            found = first(torch.relu(trunk(images[at])))
            yield from stepped(functional.cross_entropy(found, labels[at]), optimizer, "first")
    return accuracy(nn.Sequential(trunk, nn.ReLU(), second), test_images[:, pixels], names[test_labels])


def curriculum(seed: int, *, stage: int = 400, harder: str = "noise", batch: int = 64, stages: int = 6) -> Run:
    """Stages, each harder: more noise on the images, more of them hidden, or one more pair of classes."""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    model = mlp(64, 96, 96, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(stage * stages):
        level = step // stage
        fit = torch.nonzero(labels < 4 + 2 * level).flatten() if harder == "classes" else torch.arange(len(images))
        at = fit[draw(batch, len(fit))]
        inputs = images[at]
        if harder == "noise":
            inputs = inputs + 0.15 * (level + 1) * torch.randn_like(inputs)
        elif harder == "hidden":
            inputs = inputs * (torch.rand_like(inputs) > 0.12 * (level + 1))
        yield from stepped(functional.cross_entropy(model(inputs), labels[at]), optimizer)
    return accuracy(model, test_images, test_labels)


def longer(seed: int, *, stage: int = 350, stages: int = 5, first: int = 2, by: int = 2, batch: int = 32) -> Run:
    """Running parities of bits by a recurrent network, in ever longer sequences."""
    torch.manual_seed(seed)
    cell, head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=3e-3)
    for step in range(stage * stages):
        bits = torch.randint(2, (batch, first + by * (step // stage)))
        found = head(cell(bits[..., None].float())[0])
        loss = functional.cross_entropy(found.flatten(0, 1), (bits.cumsum(1) % 2).flatten())
        yield from stepped(loss, optimizer, clip=1.0)
    with torch.no_grad():
        found = head(cell(bits[..., None].float())[0]).argmax(-1)
    return float((found == bits.cumsum(1) % 2).float().mean())


def restarts(
    seed: int, *, steps: int = 2800, period: int = 400, rate: float = 0.1, optimizer: str = "momentum", batch: int = 32
) -> Run:
    """Cosine annealing with warm restarts, on digits with a tenth of the labels wrong."""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    noisy = torch.where(torch.rand(len(labels)) < 0.1, torch.randint(10, labels.shape), labels)
    model = mlp(64, 64, 64, 10)
    made = _OPTIMIZERS[optimizer](model.parameters(), rate)
    for step in range(steps):
        set_rate(made, rate * (0.002 + 0.499 * (1.0 + math.cos(math.pi * (step % period) / period))))
        at = draw(batch, len(images))
        yield from stepped(functional.cross_entropy(model(images[at]), noisy[at]), made)
    return accuracy(model, test_images, test_labels)


def fine_tune(seed: int, *, steps: int = 1500, before: int = 600, how: str = "rotated", rate: float = 1e-3) -> Run:
    """Begin with weights that know digits, at a loss near zero: train rotated ones, other labels (a new head), or all
    layers.
    """
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    model = mlp(64, 96, 64, 10)
    first = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(before):
        at = draw(64, len(images))
        first.zero_grad()
        functional.cross_entropy(model(images[at]), labels[at]).backward()
        first.step()
    names = torch.arange(10)
    if how == "new head":
        model[-1], names = nn.Linear(64, 10), torch.randperm(10)
    if how == "rotated":
        images, test_images = (one.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1) for one in (images, test_images))
    parameters = model[-1].parameters() if how == "head only" else model.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=rate)
    for _ in range(steps):
        at = draw(32, len(images))
        yield from stepped(functional.cross_entropy(model(images[at]), names[labels[at]]), optimizer)
    return accuracy(model, test_images, names[test_labels])
