"""Tasks whose channels are masked and removed: with dropout, batch norm, one optimizer or several, one slot or none."""

from __future__ import annotations

import time

import torch
from torch import nn

from tests.trainer.tasks.drawn import Clipped, Drawn, Parted
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


class Images(nn.Module):
    """The same groups between a transposed and an ordinary convolution, and a norm over channels after the second."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.ConvTranspose2d(6, 16, 2), nn.BatchNorm2d(16)
        self.last, self.second = nn.Conv2d(16, 12, 2), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        hidden = self.norm(self.first(x.view(-1, 6, 1, 1))).relu()
        return self.head(self.second(self.last(hidden)).relu().flatten(1))


class Tying(Body):
    """The last hidden layer has a twin with the same weight and another bias; the head gets their sum."""

    def __init__(self):
        super().__init__()
        self.again = nn.Linear(16, 12)
        self.again.weight = self.last.weight

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        return self.head(self.last(hidden).relu() + self.again(hidden).relu())


class Bright(Body):
    """A masked unit of the last hidden layer emits sigmoid(0): the weights that read it have gradients."""

    def forward(self, x):
        return self.head(self.last(self.drop(self.norm(self.first(x)).relu())).sigmoid())


class Pruned(Drawn):
    """The loss draws."""

    kind = Body

    def model(self, cfg):
        return self.kind()


class Judged(Pruned):
    """Its accuracy is the share of rows of the first layer that are not 0. What it evaluates leaves traces."""

    def model(self, cfg):
        model = super().model(cfg)
        model.register_buffer("seen", torch.zeros(()))
        model.calls = 0
        return model

    def evaluate(self, model, batch):
        model.seen += 1
        model.calls += 1
        torch.rand(3)
        return {"accuracy": (float(model.first.weight.any(1).sum()), len(model.first.weight))}


class Fails(Pruned):
    """Its evaluation raises if a unit is masked."""

    def evaluate(self, model, batch):
        if not model.first.weight.any(1).all():
            raise RuntimeError("no such unit")
        return super().evaluate(model, batch)


class Waits(Pruned):
    """With masks every step waits, as it does when another program has the core."""

    def loss(self, model, batch):
        if not model.first.weight.any(1).all():
            time.sleep(0.05)
        return super().loss(model, batch)


class Clips(Clipped, Pruned):
    """It clips by itself."""


class Parts(Parted, Pruned):
    """Two optimizers, and masks that cover parameters of both."""


class Updates(Parts):
    """It makes its updates itself: one of each optimizer in a step."""

    def training_step(self, model, batch, run):
        run.update("body", self.loss(model, batch))
        run.update("head", 0.5 * self.loss(model, batch))


class Cautious(Pruned):
    """An optimizer that scales by the share of elements that agree, without the masked ones."""

    def optimizer(self, model, cfg):
        return CautiousAdamW(model.parameters(), lr=1e-2, live_mean=True)


class Transposed(Pruned):
    """Convolutions, and a batch norm after each."""

    kind = Images


class Tied(Pruned):
    """Two layers with one weight."""

    kind = Tying


class Groups(Clips):
    """Weights and biases are in two groups of the optimizer, with other rates and decays; it clips by itself."""

    def optimizer(self, model, cfg):
        wide = [one for one in model.parameters() if one.dim() > 1]
        rest = [one for one in model.parameters() if one.dim() == 1]
        return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": rest, "lr": 2e-2}], lr=1e-2)


class Emitting(Pruned):
    """Its masked units emit."""

    kind = Bright


class Shaken(Pruned):
    """Its optimizer moves every weight of a layer after an update, the masked ones too."""

    def optimizer(self, model, cfg):
        return shaken(torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.5), model)


class ShakenUpdates(Updates):
    """The same in a task that makes its updates itself."""

    def optimizers(self, model):
        made = super().optimizers(model)
        # The last one of a step: no later update may hold the masks in its place.
        shaken(made["head"], model)
        return made


def shaken(optimizer, model):
    """Return the optimizer, which adds to the first layer's weights after each of its updates."""
    optimizer.register_step_post_hook(lambda *_: model.first.weight.data.add_(1e-3))
    return optimizer


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
