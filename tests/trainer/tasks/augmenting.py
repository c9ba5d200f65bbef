"""Tasks of the tests: tiny images whose items draw from every process-wide generator."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tolariad.trainer.lr import controller_of
from tolariad.trainer.optim import OptimizerRebuildCoordinator
from tolariad.trainer.tasks.chars import Chars


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        drawn = random.random() + np.random.rand() + torch.rand(())
        return torch.full((1, 4, 4), float(index % 3)) + 0.1 * drawn * torch.randn(1, 4, 4), index % 3


class Stream(IterableDataset):
    def __iter__(self):
        images = Images(48)
        for index in random.sample(range(48), 48):
            yield images[index]


class Augmenting:
    def model(self, cfg):
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3)]
        return nn.Sequential(*layers, nn.Linear(64, 3))

    def train_data(self, cfg):
        return DataLoader(
            Images(52), cfg.batch_size, shuffle=True, num_workers=cfg.workers, persistent_workers=cfg.workers > 0
        )

    def val_data(self, cfg):
        return Images(16)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        loss = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return {"loss": (loss, len(batch[1]))}


class Counting(IterableDataset):
    """Ten numbers in each epoch, never the same again; it saves its position."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        for _ in range(10):
            self.next += 1
            yield self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Stateful(Augmenting):
    def train_data(self, cfg):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Images(52), cfg.batch_size, shuffle=True, num_workers=cfg.workers)


class Wider(Augmenting):
    def model(self, cfg):
        return nn.Sequential(*list(super().model(cfg))[:-1], nn.Linear(64, 4))


class Deeper(Augmenting):
    def model(self, cfg):
        return nn.Sequential(*super().model(cfg), nn.Linear(3, 3))


class Overflowing(Augmenting):
    """The loss of some batches exceeds the range of fp16 or is infinite. It counts batches in its own state."""

    seen = 0

    def loss(self, model, batch):
        self.seen += 1
        return super().loss(model, batch) * self.factor.get(self.seen, 1.0)

    def model(self, cfg):
        self.factor = {1: 1e30, 5: 1e30, 7: 1e30, 8: float("inf"), 12: float("nan")}
        if not cfg.task_options.get("overflow", True):
            self.factor = {}
        return super().model(cfg)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class FewCharacters(Chars):
    """The built-in task on the first windows of its text."""

    def train_data(self, cfg):
        return tuple(tensor[:80] for tensor in super().train_data(cfg))

    def val_data(self, cfg):
        return tuple(tensor[:16] for tensor in super().val_data(cfg))


class _Batches:
    """Not a DataLoader: an iterable of batches with a length."""

    def __init__(self, size):
        self.loader = DataLoader(Stream(), size)

    def __len__(self):
        return 6

    def __iter__(self):
        return iter(self.loader)


class Streaming(Augmenting):
    def train_data(self, cfg):
        return _Batches(cfg.batch_size)


class Unmeasured(Augmenting):
    """A loader over a stream of unknown length. It is checkpointed between epochs."""

    def train_data(self, cfg):
        return DataLoader(Stream(), cfg.batch_size)


class _Placed:
    """Six batches in each epoch, without a length; it saves its position."""

    def __init__(self, size):
        self.size, self.at = size, 0

    def __iter__(self):
        images = Images(6 * self.size)
        while self.at < 6:
            self.at += 1
            items = [images[index] for index in range((self.at - 1) * self.size, self.at * self.size)]
            yield torch.stack([item for item, _ in items]), torch.tensor([kind for _, kind in items])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Placed(Augmenting):
    def train_data(self, cfg):
        return _Placed(cfg.batch_size)


class Growing(Augmenting):
    """Adds a layer after its third step and rebuilds its optimizer."""

    def optimizer(self, model, cfg):
        self.own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return self.own

    def on_step_end(self, model, step):
        if step == 3:
            coordinator = OptimizerRebuildCoordinator(self.own, model, controller_of(self.own))
            model.append(nn.Linear(3, 3))
            assert coordinator.rebuild()


class Probing(Augmenting):
    """Computes gradients between two epochs, and does not clear them."""

    def on_epoch_end(self, model, epoch, metrics):
        model(torch.ones(2, 1, 4, 4)).sum().backward()
