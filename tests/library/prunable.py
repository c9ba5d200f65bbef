"""A task whose channels are pruned, for the daemon and for a program: the same model, data and loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def rows(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(samples, 16, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :4].argmax(1)


def loaders() -> tuple[DataLoader, DataLoader]:
    train, validation = (TensorDataset(*rows(samples, seed)) for samples, seed in ((96, 1), (48, 2)))
    return DataLoader(train, 12, shuffle=True), DataLoader(validation, 12)


def network() -> nn.Module:
    torch.manual_seed(3)
    hidden = (nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 12), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(12, 4))


class Losses:
    """The loss and the validation, which a program gives as `task=`."""

    def loss(self, model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        outputs = model(batch[0])
        right = (outputs.argmax(1) == batch[1]).sum()
        loss = cross_entropy(outputs, batch[1], reduction="sum")
        return {"loss": (loss, len(batch[1])), "accuracy": (right, len(batch[1]))}


class Prunable(Losses):
    """The whole, which the daemon builds."""

    def model(self, cfg):
        return network()

    def train_data(self, cfg):
        return loaders()[0]

    def val_data(self, cfg):
        return loaders()[1]
