"""Trainings without labels: adversarial ones, contrastive ones, autoencoders, a model of characters."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

import tolariad
from tests.study.trainings.base import Run, digits, draw, mlp, stepped

_MODES = 8


def _ring(count: int) -> torch.Tensor:
    """Points of eight Gaussians on a circle."""
    angle = 2.0 * math.pi * torch.randint(_MODES, (count,)) / _MODES
    return 2.0 * torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(count, 2)


def _covered(made: torch.Tensor) -> float:
    """The share of the modes that points lie near."""
    angle = 2.0 * math.pi * torch.arange(_MODES) / _MODES
    centres = 2.0 * torch.stack((angle.cos(), angle.sin()), 1)
    near = torch.cdist(made, centres) < 0.4
    return float(near.any(0).float().mean())


def adversarial(
    seed: int, *, steps: int = 3000, shown: str = "both", game: str = "logistic", rate: float = 1e-3
) -> Run:
    """Train generator and discriminator in turn. `shown`: each step's loss (`turns`), their sum, or the generator's
    only.
    """
    torch.manual_seed(seed)
    generator, critic = mlp(8, 64, 64, 2), mlp(2, 64, 64, 1)
    betas = (0.5, 0.9)
    makes = torch.optim.Adam(generator.parameters(), lr=rate, betas=betas)
    judges = torch.optim.Adam(critic.parameters(), lr=rate, betas=betas)
    both = torch.optim.Adam([{"params": generator.parameters()}, {"params": critic.parameters()}], lr=rate, betas=betas)

    def judged() -> torch.Tensor:
        real, fake = critic(_ring(64)), critic(generator(torch.randn(64, 8)).detach())
        if game == "logistic":
            return functional.softplus(-real).mean() + functional.softplus(fake).mean()
        if game == "hinge":
            return functional.relu(1.0 - real).mean() + functional.relu(1.0 + fake).mean()
        return fake.mean() - real.mean()

    def made() -> torch.Tensor:
        fake = critic(generator(torch.randn(64, 8)))
        return functional.softplus(-fake).mean() if game == "logistic" else -fake.mean()

    for step in range(steps):
        if shown == "turns":
            if step % 2:
                yield from stepped(judged(), judges, "critic")
            else:
                yield from stepped(made(), makes, "generator")
        elif shown == "both":
            # One loss, one update: the critic's parameters are told the negative of the generator's gradient by a
            # detour.
            yield from stepped(_both(generator, critic, judged, made), both)
        else:
            judges.zero_grad()
            judged().backward()
            judges.step()
            yield from stepped(made(), makes)
        if game == "wasserstein":
            with torch.no_grad():
                for one in critic.parameters():
                    one.clamp_(-0.1, 0.1)
    with torch.no_grad():
        return _covered(generator(torch.randn(512, 8)))


def _both(generator: nn.Module, critic: nn.Module, judged, made) -> torch.Tensor:
    """The sum of both losses, of which each network sees its own."""
    of_critic = judged()
    critic.requires_grad_(False)
    of_generator = made()
    critic.requires_grad_(True)
    return of_critic + of_generator


def contrast(seed: int, *, steps: int = 1200, batch: int = 64, temperature: float = 0.2, growing: bool = False) -> Run:
    """Train InfoNCE between two augmentations of digits. With `growing` the batch doubles twice, and the loss by its
    log.
    """
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    model = mlp(64, 128, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def augmented(given: torch.Tensor) -> torch.Tensor:
        return (given + 0.2 * torch.randn_like(given)) * (torch.rand_like(given) > 0.2)

    for step in range(steps):
        count = batch << (3 * step // steps) if growing else batch
        given = images[draw(count, len(images))]
        one, other = (functional.normalize(model(augmented(given)), dim=1) for _ in range(2))
        yield from stepped(functional.cross_entropy(one @ other.T / temperature, torch.arange(count)), optimizer)
    with torch.no_grad():
        known, asked = functional.normalize(model(images), dim=1), functional.normalize(model(test_images), dim=1)
        return float((labels[(asked @ known.T).argmax(1)] == test_labels).float().mean())


def encode(seed: int, *, steps: int = 1800, warm_up: int = 600, weight: float = 1.0) -> Run:
    """A variational autoencoder of digits whose second term comes in over `warm_up` steps."""
    torch.manual_seed(seed)
    images, _, test_images, _ = digits()
    there, back = mlp(64, 96, 16), mlp(8, 96, 64)
    optimizer = torch.optim.Adam([*there.parameters(), *back.parameters()], lr=1e-3)

    def loss(given: torch.Tensor, share: float) -> torch.Tensor:
        mean, log_variance = there(given).chunk(2, 1)
        found = back(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
        apart = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(1).mean()
        return (found - given).square().sum(1).mean() + share * apart

    for step in range(steps):
        yield from stepped(loss(images[draw(64, len(images))], weight * min(1.0, step / warm_up)), optimizer)
    with torch.no_grad():
        return -float(loss(test_images, weight))


def density(seed: int, *, steps: int = 1500, rate: float = 2e-3) -> Run:
    """Gaussian likelihood with a spread of its own: the loss becomes negative as the model grows sure."""
    torch.manual_seed(seed)
    model = mlp(1, 64, 64, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def loss(count: int) -> torch.Tensor:
        inputs = 4.0 * torch.rand(count, 1) - 2.0
        target = torch.sin(3.0 * inputs) + 0.02 * (1.0 + inputs.abs()) * torch.randn_like(inputs)
        mean, log_spread = model(inputs).chunk(2, 1)
        return (log_spread + 0.5 * ((target - mean) / log_spread.exp()).square()).mean()

    for _ in range(steps):
        yield from stepped(loss(64), optimizer)
    with torch.no_grad():
        return -float(loss(2048))


def characters(seed: int, *, steps: int = 700, batch: int = 16, length: int = 32, rate: float = 3e-3) -> Run:
    """The next character of Python's own licence-like text, by a small recurrent network."""
    torch.manual_seed(seed)
    text = (tolariad.__doc__ or "") + (torch.nn.Module.__doc__ or "") + (torch.optim.Adam.__doc__ or "") * 4
    signs = sorted(set(text))
    data = torch.tensor([signs.index(one) for one in text])
    embed, cell, head = nn.Embedding(len(signs), 24), nn.GRU(24, 64, batch_first=True), nn.Linear(64, len(signs))
    optimizer = torch.optim.Adam([*embed.parameters(), *cell.parameters(), *head.parameters()], lr=rate)
    loss = torch.tensor(math.nan)
    for _ in range(steps):
        at = draw(batch, len(data) - length - 1)[:, None] + torch.arange(length + 1)
        found = head(cell(embed(data[at[:, :-1]]))[0])
        loss = functional.cross_entropy(found.flatten(0, 1), data[at[:, 1:]].flatten())
        yield from stepped(loss, optimizer, clip=1.0)
    return -loss.item()
