"""A blueprint of your own: how a seed is built for the input of its slot."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """h + narrow(relu(wide(h)))."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, hidden, 3, padding=1)
        self.narrow = nn.Conv2d(hidden, channels, 1)
        # At birth the branch gives zero: a germination must not change what the model computes.
        nn.init.zeros_(self.narrow.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(self, h: Tensor) -> Tensor:
        """Return a tensor of the shape of `h`: (batch, channels, height, width)."""
        return h + self.narrow(torch.relu(self.wide(h)))


class Widening:
    """A residual block with `factor` times as many channels inside. Set it with `--set factor=8` of an order."""

    def __init__(self, factor: float = 4.0) -> None:
        self.factor = factor

    def build(self, example: Tensor) -> nn.Module:
        """Return the seed. `example` has the shape, the type and the device of the slot's input."""
        channels = example.shape[1]
        return Residual(channels, int(channels * self.factor)).to(example)
