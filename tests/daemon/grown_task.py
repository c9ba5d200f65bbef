"""The digits, and a convolutional network with two slots for seeds."""

from __future__ import annotations

from torch import nn

from tolariad.trainer.seeds import SeedSlot
from tolariad.trainer.tasks.digits import Digits


class Grown(Digits):
    """The data and the loss of the task `digits`."""

    def model(self, cfg):
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), SeedSlot("early"), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), SeedSlot("late"), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10)),
        )
