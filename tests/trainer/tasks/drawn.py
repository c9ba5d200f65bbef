"""The data and the loss of small tasks: rows of six numbers in three classes, and a loss that draws."""

from __future__ import annotations

import torch
from torch.nn import functional


class Drawn:
    """A task without its model."""

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


class Clipped:
    """A task that clips by itself."""

    def clip_gradients(self, model):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


class Parted:
    """A task with two optimizers."""

    def optimizers(self, model):
        head = list(model.head.parameters())
        rest = [one for one in model.parameters() if all(one is not other for other in head)]
        return {
            "body": torch.optim.AdamW(rest, lr=1e-2),
            "head": torch.optim.SGD(head, lr=2e-2, momentum=0.9, weight_decay=0.01),
        }
