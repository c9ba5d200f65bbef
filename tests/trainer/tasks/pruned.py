"""Tasks whose channels are masked and removed: with dropout, batch norm, one optimizer or several, one slot or none."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.lr import controller_of
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.seeds import SeedSlot

GROWS = 17


class Body(nn.Module):
    """Two groups of channels: `first` (16) through a batch norm, `last` (12)."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.last, self.head = nn.Linear(16, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.last(self.drop(self.norm(self.first(x)).relu())).relu())


class Slotted(Body):
    """The same with a slot for a seed after the last hidden layer."""

    def __init__(self):
        super().__init__()
        self.slot = SeedSlot("s")

    def forward(self, x):
        return self.head(self.slot(self.last(self.drop(self.norm(self.first(x)).relu())).relu()))


class Pruned:
    """The loss draws."""

    kind = Body

    def model(self, cfg):
        return self.kind()

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


class Clips(Pruned):
    """It clips by itself."""

    def clip_gradients(self, model):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


class Parts(Pruned):
    """Two optimizers, and masks that cover parameters of both."""

    def optimizers(self, model):
        head = list(model.head.parameters())
        rest = [one for one in model.parameters() if all(one is not other for other in head)]
        return {
            "body": torch.optim.AdamW(rest, lr=1e-2),
            "head": torch.optim.SGD(head, lr=2e-2, momentum=0.9, weight_decay=0.01),
        }


class Updates(Parts):
    """It makes its updates itself: one of each optimizer in a step."""

    def training_step(self, model, batch, run):
        run.update("body", self.loss(model, batch))
        run.update("head", 0.5 * self.loss(model, batch))


class Cautious(Pruned):
    """An optimizer that scales by the share of elements that agree, without the masked ones."""

    def optimizer(self, model, cfg):
        return CautiousAdamW(model.parameters(), lr=1e-2, live_mean=True)


class Foreign(Pruned):
    """An optimizer whose state nobody knows."""

    def optimizer(self, model, cfg):
        return Own(model.parameters(), lr=1e-2, momentum=0.5)


class Own(torch.optim.SGD):
    """It might keep anything."""


class Seeded(Pruned):
    """With a slot."""

    kind = Slotted


class Grows(Pruned):
    """Its hidden layer becomes wider within the run, after masks were applied to it."""

    def on_step_end(self, model, step):
        if step == GROWS:
            controller_of(model).grow("widen", by=3)

    def grow(self, model, change):
        by, last, head = change.arguments["by"], model.last, model.head
        last.weight = nn.Parameter(torch.cat([last.weight.detach(), 0.1 * torch.randn(by, last.in_features)]))
        last.bias = nn.Parameter(torch.cat([last.bias.detach(), torch.zeros(by)]))
        head.weight = nn.Parameter(torch.cat([head.weight.detach(), 0.1 * torch.randn(head.out_features, by)], 1))
        last.out_features += by
        head.in_features += by


class Turns(Grows):
    """It puts new channels before the old ones, so that the masks would lie on others."""

    def grow(self, model, change):
        super().grow(model, change)
        with torch.no_grad():
            model.last.weight.copy_(model.last.weight.flip(0))
