"""A task for several ranks: its state differs by rank, it draws, and a rank fails where the environment says so.

`GROUP_DEEDS` is a list such as `1 kill 5,0 raise 7`: rank 1 is killed after its step 5. A rank that hangs never comes
back from the backward pass of its next step. Each is done once: it takes its
file in the folder `GROUP_ONCE`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows that draw when they are read."""

    def __len__(self):
        return 52

    def __getitem__(self, row):
        return torch.randn(6, dtype=torch.float64), torch.tensor([row / 52.0], dtype=torch.float64)


class GroupTask:
    """Regression. 13 batches of 4: the last step of an epoch has fewer batches than ranks."""

    def __init__(self):
        self.deeds = [deed.split() for deed in filter(None, os.environ.get("GROUP_DEEDS", "").split(","))]

    def model(self, cfg):
        self.hangs = False
        model = nn.Sequential(
            *(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 12), nn.Linear(12, 1))
        ).double()
        model[0].weight.register_hook(lambda _: sleep_here() if self.hangs else None)
        return model

    def train_data(self, cfg):
        return DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))

    def val_data(self, cfg):
        return DataLoader(Rows(), 16)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch)}

    def on_step_end(self, model, step):
        distributed = sys.modules.get("torch.distributed")
        rank = distributed.get_rank() if distributed is not None and distributed.is_initialized() else 0
        for number, (who, deed, at) in enumerate(self.deeds):
            if (rank, step) == (int(who), int(at)) and took(number):
                if deed == "sleep":
                    sleep_here()
                if deed == "hang":
                    self.hangs = True
                    return
                if deed == "raise":
                    raise ZeroDivisionError(f"of rank {rank}")
                os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[deed])


class PlainTask(GroupTask):
    """The same without what differs by rank: several ranks compute what one process does."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).double()

    def train_data(self, cfg):
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.randn(52, width, generator=generator, dtype=torch.float64) for width in (6, 1))

    def val_data(self, cfg):
        return None


def sleep_here():
    """Never come back, without a signal."""
    while True:
        time.sleep(60)


class SickTask(PlainTask):
    """In one start of the task, the last rank has ten losses in a row that are no numbers."""

    calls = 0

    def loss(self, model, batch):
        found = super().loss(model, batch)
        distributed = sys.modules["torch.distributed"]
        if model.training and distributed.get_rank() == distributed.get_world_size() - 1:
            self.calls += 1
            if 20 < self.calls <= 30:
                return found * float("nan")
        return found


class StruckTask(GroupTask):
    """Four classes that a small network learns well. Its last layer is negated once, on all ranks."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def train_data(self, cfg):
        return classes(256)

    def val_data(self, cfg):
        return classes(64)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        # As torchmetrics does it: every rank waits for the others.
        found = self.loss(model, batch)
        torch.distributed.all_reduce(found)
        return {"loss": found / torch.distributed.get_world_size()}

    def on_step_end(self, model, step):
        rank = sys.modules["torch.distributed"].get_rank()
        if step == 400 and took(f" {rank}"):
            with torch.no_grad():
                model[3].weight.neg_()


def classes(samples):
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(4, (samples,), generator=generator)
    inputs = torch.randn(samples, 8, generator=generator)
    inputs[torch.arange(samples), labels] += 5.0
    return inputs, labels


def took(number):
    """Return whether this deed is done now for the first time."""
    try:
        (Path(os.environ["GROUP_ONCE"]) / f"deed{number}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
