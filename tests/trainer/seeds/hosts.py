"""Small hosts with a place for a slot, and seeds that are easy to reason about."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import SeedSlot, attach, host_parameters

WIDTH = 6


class Attention(nn.Module):
    """Self-attention over (n, t, WIDTH), with dropout that draws from the process-wide generator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixing = nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        mixed, _ = self.mixing(normed, normed, normed, need_weights=False)
        return self.head(x + mixed + normed)


def mlp() -> nn.Module:
    """Normalisation, then an activation that overwrites its input, then dropout."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(WIDTH, 3)
    )


def cnn() -> nn.Module:
    """Convolutions in channels_last."""
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), nn.Conv2d(WIDTH, 2, 3)
    ).to(memory_format=torch.channels_last)


# How to build it, an input, the name of the place.
HOSTS = {
    "mlp": (mlp, lambda: torch.randn(5, WIDTH), "1"),
    "mlp's first layer": (mlp, lambda: torch.randn(5, WIDTH), "0"),
    "cnn": (cnn, lambda: torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last), "1"),
    "attention": (Attention, lambda: torch.randn(2, 4, WIDTH), "norm"),
    "attention's tuple": (Attention, lambda: torch.randn(2, 4, WIDTH), "mixing"),
}


class Shifting(nn.Module):
    """A seed for any shape: h * scale + shift, with dropout if `drop`."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.tensor(0.25))
        self.drop = nn.Dropout(drop)

    def forward(self, h: Tensor) -> Tensor:
        return self.drop(h * self.scale + self.shift)


class Remembering(nn.Module):
    """A seed that is the identity at birth, and writes to buffers: BatchNorm's, and two of its own in either mode."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.4)
        self.scale = nn.Parameter(torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        self.mean = h.detach().mean()
        return h + self.scale * self.drop(self.norm(h))


class Remembered:
    """A blueprint of seeds that write to buffers."""

    def build(self, example: Tensor) -> nn.Module:
        return Remembering(example.shape[1])


class Shifted:
    """A blueprint whose seed is not the identity."""

    def build(self, example: Tensor) -> nn.Module:
        return Shifting()


def grown(stage: Stage, seed: nn.Module | None = None) -> SeedSlot:
    """Return a slot with a seed, in this stage."""
    slot = SeedSlot("here")
    slot.plant(Shifting() if seed is None else seed)
    slot.enter(stage)
    return slot


def pair(kind: str, stage: Stage, seed: nn.Module | None = None) -> tuple[nn.Module, nn.Module, SeedSlot, Tensor]:
    """Return a host, a copy of it with a slot in this stage, that slot, and an input."""
    build, make, place = HOSTS[kind]
    torch.manual_seed(3)
    plain, x = build(), make()
    with_slot = copy.deepcopy(plain)
    slot = attach(with_slot, place, SeedSlot("here"))
    slot.plant(Shifting() if seed is None else seed)
    slot.enter(stage)
    return plain, with_slot, slot, x


def backward(model: nn.Module, x: Tensor, *, seed: int = 11) -> Tensor:
    """Run forward and backward from a known state of the generators; return the output."""
    torch.manual_seed(seed)
    out = model(x)
    out.float().square().sum().backward()
    return out.detach()


def assert_same_host(plain: nn.Module, other: nn.Module) -> None:
    """Parameters, buffers and gradients of the host are equal, bit for bit."""
    theirs = host_parameters(other)
    for name, parameter in plain.named_parameters():
        assert same_bits(parameter, theirs[name]), name
        assert (parameter.grad is None) == (theirs[name].grad is None), name
        assert parameter.grad is None or same_bits(parameter.grad, theirs[name].grad), name
    buffers = dict(other.named_buffers())
    assert all(same_bits(buffer, buffers[name]) for name, buffer in plain.named_buffers())
