"""Random models of many kinds of layers and parameters, and random ways to train them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.trainer.ranks.cases import Case

WIDTH = 12


class Scaled(nn.Module):
    """A number without dimensions, and a tensor without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(3, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.empty.sum()


class Strided(nn.Module):
    """A weight whose columns lie together, and one that is a view of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.loose = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)[:, ::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.turned * 0.3 + x @ self.loose * 0.3


class Planes(nn.Module):
    """Convolutions in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 2, padding=1).to(memory_format=torch.channels_last)
        self.head = nn.Linear(4 * 3 * 3, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planes = x.view(-1, 3, 2, 2).to(memory_format=torch.channels_last)
        return self.head(self.body(planes).flatten(1))


class Other(nn.Module):
    """Parameters of another dtype than the rest."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=dtype) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x.to(self.weight.dtype) @ self.weight
        return (found.real + found.imag if found.is_complex() else found).to(x.dtype)


class Sometimes(nn.Module):
    """One of two layers, by the input; a third that is never used; a fourth that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.layers[3].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[3](self.layers[int(x.detach().flatten()[0].abs() * 1e4) % 2](x))


class Twice(nn.Module):
    """One layer used twice, and a bias that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.bias = self.one.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(torch.tanh(self.one(x)))))


class Recomputed(nn.Module):
    """A block with dropout whose forward pass is made again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


class Zeros(nn.Module):
    """A weight whose gradients are 0.0 or -0.0 in some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight * torch.where(x > 1.0, x, -0.0 * x)


BLOCKS = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
    "wide": lambda: nn.Sequential(nn.Linear(WIDTH, 300), nn.GELU(), nn.Linear(300, WIDTH)),
    "dropout": lambda: nn.Dropout(0.25),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "scaled": Scaled,
    "strided": Strided,
    "planes": Planes,
    "double": lambda: Other(torch.float64),
    "half": lambda: Other(torch.bfloat16),
    "complex": lambda: Other(torch.complex64),
    "sometimes": Sometimes,
    "twice": Twice,
    "recomputed": Recomputed,
    "zeros": Zeros,
}


@dataclass(frozen=True)
class RandomCase(Case):
    """A random stack of blocks. `penalty`: the loss has gradients in it."""

    blocks: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    penalty: bool = False
    number: int = field(default=0)

    @property
    def has_statistics(self) -> bool:
        return "batch norm" in self.blocks

    def built(self) -> nn.Module:
        torch.manual_seed(self.number)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(BLOCKS[one]() for one in self.blocks), nn.Linear(WIDTH, 1))

    def batch(self, step: int, leaf: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(self.number % 1000 + 1000 * step + leaf)
        size = self.sizes[leaf % len(self.sizes)]
        return torch.randn(size, WIDTH, generator=drawn), torch.randn(size, 1, generator=drawn)

    def loss(self, model: nn.Module, step: int, leaf: int) -> torch.Tensor:
        x, y = self.batch(step, leaf)
        with self.forward():
            if self.penalty:
                x.requires_grad_()
            found = (model(x).float() - y).square().mean()
            if self.penalty:
                (slope,) = torch.autograd.grad(found, x, create_graph=True)
                found = found + 0.1 * slope.square().sum()
        return found


def drawn(seed: int) -> tuple[RandomCase, int]:
    """Return a random case, and a number of ranks for it."""
    draw = random.Random(seed)
    ranks = draw.randint(2, 5)
    blocks = tuple(draw.choices(list(BLOCKS), k=draw.randint(1, 6)))
    ddp = None
    if draw.random() < 0.6:
        ddp = {
            "bucket_cap_mb": draw.choice((0.0005, 0.005, 25)),
            "gradient_as_bucket_view": draw.random() < 0.5,
            "find_unused_parameters": draw.random() < 0.3,
        }
    fused = {"fused": True} if "complex" not in blocks and draw.random() < 0.3 else {}
    return RandomCase(
        leaves=(leaves := draw.randint(ranks, 9)),
        last=draw.choice((None, draw.randint(1, leaves))),
        steps=4,
        clip=draw.choice((None, 0.5)),
        bf16=draw.random() < 0.2,
        optimizer=draw.choice(({}, fused, {"foreach": True})),
        ddp=ddp,
        blocks=blocks,
        sizes=tuple(draw.choices((2, 3, 5, 8), k=3)),
        backwards=draw.choice((1, 1, 2)),
        penalty=draw.random() < 0.3 and "zeros" not in blocks,
        number=draw.randrange(1 << 30),
    ), ranks
