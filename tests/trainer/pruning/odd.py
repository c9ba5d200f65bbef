"""Models with a part that graph or trial cannot handle, between two layers that can be pruned.

Each has `before` (16 channels, which the odd part reads) and `after` (12 channels, which the last layer reads). So
`after` must be found, whatever stands before it.
"""

from __future__ import annotations

import torch
from torch import nn

LENGTH, INPUTS = 5, 8


def example(seed=0, count=3):
    """Return inputs (n, 5, 8)."""
    return torch.randn(count, LENGTH, INPUTS, generator=torch.Generator().manual_seed(seed))


class Odd(nn.Module):
    """`before`, the odd part (16 to 16), `after`, `out`."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(INPUTS, 16)
        self.make()
        self.after, self.out = nn.Linear(16, 12), nn.Linear(12, 3)

    def make(self):
        """Make what the odd part needs."""

    def odd(self, x):
        return x

    def forward(self, x):
        return self.out(self.after(self.odd(self.before(x).relu())).relu())
