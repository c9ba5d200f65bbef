"""Digits with a convolutional network that is too narrow for them, and two slots in which it can grow."""

from __future__ import annotations

from typing import Any

from torch import nn

from tolariad.trainer.seeds import SeedSlot
from tolariad.trainer.tasks.digits import Digits


class Narrow(Digits):
    """The data and the loss of the task `digits`, with another model."""

    def model(self, cfg: Any) -> nn.Module:
        """Return a network of 358 parameters. A slot hands on its input until a seed grows in it."""
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            SeedSlot("early"),
            nn.Conv2d(4, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            SeedSlot("late"),
            nn.Flatten(),
            nn.Linear(16, 10),
        )
