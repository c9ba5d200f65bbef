"""Small models with several losses, in double precision, and the explicit form of PCGrad."""

from __future__ import annotations

import random

import torch
from torch import nn

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.gradients import MultiSeedGradientAggregator, SeedGradientInfo
from tolariad.trainer.gradients.conflicts import ANY_CONFLICT

SEEDS = ("left", "middle", "right")


class Forked(nn.Module):
    """A trunk with a head for the host and one for each seed. `isolated`: the seeds learn on a detached input."""

    def __init__(self, names=SEEDS, *, isolated=False, dtype=torch.float64, width=6) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, width, dtype=dtype)
        self.head = nn.Linear(width, 3, dtype=dtype)
        self.seeds = nn.ModuleDict({name: nn.Linear(width, 3, dtype=dtype) for name in names})
        self.isolated = isolated

    def losses(self, x, targets) -> dict[str, torch.Tensor]:
        """The host's loss, and one for each seed, by name."""
        hidden = self.trunk(x).tanh()
        seen = hidden.detach() if self.isolated else hidden
        found = {"host": (self.head(hidden) - targets["host"]).square().mean()}
        for name, seed in self.seeds.items():
            found[name] = (seed(seen) - targets[name]).square().mean()
        return found


def drawn(seed: int, names=SEEDS, dtype=torch.float64, samples=5):
    """Inputs, and targets of which many make the losses disagree."""
    torch.manual_seed(seed)
    x = torch.randn(samples, 4, dtype=dtype)
    return x, {name: 3 * torch.randn(samples, 3, dtype=dtype) for name in ("host", *names)}


def forked(seed: int = 0, names=SEEDS, **options):
    """A model, and the losses of one batch."""
    torch.manual_seed(1000 + seed)
    model = Forked(names, **options)
    return model, model.losses(*drawn(seed, names, options.get("dtype", torch.float64)))


def infos(losses, names=SEEDS, **options) -> list[SeedGradientInfo]:
    """Return the losses as a task does: every seed in SHADOWING (weight 0.5), with the host's batch size."""
    options = {"batch_size": 5, "stage": Stage.SHADOWING} | options
    return [SeedGradientInfo(name, losses[name], **options) for name in names]


def gradients_of(model) -> dict[str, torch.Tensor | None]:
    """Copies of the gradients of all parameters."""
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def flat_gradient(loss, parameters) -> torch.Tensor:
    """The gradient of a loss, all parameters in one vector."""
    found = torch.autograd.grad(loss, parameters, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in found])


def conflicts(a, b, threshold) -> bool:
    """Whether the cosine of two vectors is below the threshold."""
    return bool(a @ b < threshold * a.norm() * b.norm())


def projected(a, b):
    """`a` without its component along `b`."""
    return a - (a @ b) / (b @ b) * b


def explicit_pcgrad(host, seeds, order, threshold):
    """The sum by PCGrad, on vectors: seeds against the host, then each against the others in `order`.

    `order`: for each seed, the sequence of all of them. `host`: None if it shares nothing.
    """
    if host is not None:
        seeds = [projected(seed, host) if conflicts(seed, host, threshold) else seed for seed in seeds]
    total = torch.zeros_like(seeds[0]) if host is None else host.clone()
    for i in range(len(seeds)):
        left = seeds[i]
        for j in order[i]:
            if j != i and conflicts(left, seeds[j], threshold):
                left = projected(left, seeds[j])
        total = total + left
    return total


def shuffled(values, seed):
    """The values in another order."""
    values = list(values)
    random.Random(seed).shuffle(values)
    return values


def aggregator(**options) -> MultiSeedGradientAggregator:
    """One that resolves every conflict and does not clip."""
    return MultiSeedGradientAggregator(**({"conflict_threshold": ANY_CONFLICT, "max_gradient_norm": 0.0} | options))


def backward(model, losses, names=SEEDS, *, of=None, step=1, seed_losses=None, **options):
    """Run the backward pass of all losses."""
    given = infos(losses, names, **options) if seed_losses is None else seed_losses
    return (of or aggregator()).backward_with_aggregation(model, losses["host"], given, 5, 1, 10, step=step)


def one_loss(loss, **options) -> SeedGradientInfo:
    """An auxiliary loss in TRAINING."""
    return SeedGradientInfo("one", loss, **({"batch_size": 4, "stage": Stage.TRAINING} | options))


class retained:  # noqa: N801 - reads as a statement
    """In the block, backward passes keep the graph of these losses."""

    def __init__(self, losses) -> None:
        self.original = torch.autograd.backward

    def __enter__(self) -> None:
        torch.autograd.backward = lambda *given, **more: self.original(*given, **(more | {"retain_graph": True}))

    def __exit__(self, *_) -> None:
        torch.autograd.backward = self.original


def all_equal(found, expected) -> bool:
    """Whether all gradients have the same bits."""
    return found.keys() == expected.keys() and all(_equal(found[name], expected[name]) for name in found)


def all_close(found, expected, tolerance) -> bool:
    """Whether all gradients are the same, relative to their norm."""
    return all(
        (found[name] is None and expected[name] is None)
        or (found[name] - expected[name]).norm() <= tolerance * max(expected[name].norm(), 1e-30)
        for name in expected
    )


def _equal(one, other) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
