"""Tasks whose model has slots for seeds: one within the model, one attached to a module of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

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


class Seeded:
    """The loss draws. `grow` is not needed: seeds are germinated by orders."""

    def model(self, cfg):
        return Body()

    def seed_slots(self, model):
        attach(model, "last", SeedSlot("outer"))

    def train_data(self, cfg):
        drawn = torch.randn(50, 6)
        return drawn, drawn[:, :3].argmax(1)

    def val_data(self, cfg):
        drawn = torch.randn(20, 6)
        return drawn, drawn[:, :3].argmax(1)

    def loss(self, model, batch):
        inputs, targets = batch
        return functional.cross_entropy(model(inputs + 0.1 * torch.randn_like(inputs)), targets)

    def evaluate(self, model, batch):
        inputs, targets = batch
        return {"loss": (functional.cross_entropy(model(inputs), targets, reduction="sum"), len(targets))}


class Unseeded(Seeded):
    """The same without slots."""

    def model(self, cfg):
        return Bare()

    def seed_slots(self, model):
        """No slot."""


class Clips(Seeded):
    """It clips by itself."""

    def clip_gradients(self, model):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


class Parts(Seeded):
    """Two optimizers."""

    def optimizers(self, model):
        head = list(model.head.parameters())
        rest = [one for one in model.parameters() if all(one is not other for other in head)]
        return {
            "body": torch.optim.AdamW(rest, lr=1e-2),
            "head": torch.optim.SGD(head, lr=2e-2, momentum=0.9),
        }


class Updates(Seeded):
    """It makes its updates itself, which seeds cannot have."""

    def training_step(self, model, batch, run):
        run.update("host", self.loss(model, batch))
