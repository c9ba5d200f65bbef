"""Tasks whose model has slots for seeds: one within the model, one attached to a module of it."""

from __future__ import annotations

import torch
from torch import nn

from tests.trainer.tasks.drawn import Clipped, Drawn, Parted
from tolariad.trainer.seeds import SeedSlot, attach


class Body(nn.Module):
    """A small network with dropout, batch norm and a slot."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.slot = SeedSlot("inner")
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.drop(self.slot(self.norm(self.first(x)).relu()))
        return self.head(self.last(hidden).relu())


class Bare(Body):
    """The same without the slot."""

    def __init__(self):
        super().__init__()
        self.slot = nn.Identity()


class Seeded(Drawn):
    """The loss draws. `grow` is not needed: seeds are germinated by orders."""

    def model(self, cfg):
        return Body()

    def seed_slots(self, model):
        attach(model, "last", SeedSlot("outer"))


class Unseeded(Seeded):
    """The same without slots."""

    def model(self, cfg):
        return Bare()

    def seed_slots(self, model):
        """No slot."""


class Clips(Clipped, Seeded):
    """It clips by itself."""


class Parts(Parted, Seeded):
    """Two optimizers."""


class CountingSGD(torch.optim.SGD):
    """It counts its steps in each group, whether a parameter has a gradient or not."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        for group in self.param_groups:
            group["made"] = 0

    def step(self, closure=None):
        for group in self.param_groups:
            group["made"] += 1
        return super().step(closure)


class Counts(Seeded):
    """Its optimizer, and so those of seeds, has momentum and weight decay and counts its steps."""

    def optimizer(self, model, cfg):
        return CountingSGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)


class Updates(Seeded):
    """It makes its updates itself, which seeds cannot have."""

    def training_step(self, model, batch, run):
        run.update("host", self.loss(model, batch))
