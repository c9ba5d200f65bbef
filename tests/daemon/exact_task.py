"""Tasks for exact sums: all that draws, clips and keeps statistics. `GROUP_DEEDS` as in group_task.

`daemon` is a deed too: rank 0 kills the daemon, and with it all ranks.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tests.daemon.group_task import took

ROWS = 52


class Rows(Dataset):
    """Images that draw when they are read, and their classes."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return torch.randn(3, 6, 6), row % 4


class Perceptron:
    """Dropout and clipping. 13 batches of 4 in an order of the loader's own."""

    def __init__(self):
        self.deeds = [deed.split() for deed in filter(None, os.environ.get("GROUP_DEEDS", "").split(","))]
        self.rank = int(sys.argv[sys.argv.index("--rank") + 1]) if "--rank" in sys.argv else 0

    def model(self, cfg):
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))

    def train_data(self, cfg):
        return DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))

    def val_data(self, cfg):
        return DataLoader(Rows(), 16)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch)}

    def clip_gradients(self, model):
        return nn.utils.clip_grad_norm_(model.parameters(), 0.7)

    def on_step_end(self, model, step):
        torch.rand(1)  # between two leaves of other steps
        if torch.distributed.is_initialized():
            raise RuntimeError("a rank with exact sums needs no process group")
        for number, (who, deed, at) in enumerate(self.deeds):
            if (self.rank, step) == (int(who), int(at)) and took(number):
                if deed == "raise":
                    raise ZeroDivisionError(f"of rank {who}")
                os.kill(os.getppid() if deed == "daemon" else os.getpid(), signal.SIGKILL)


class Measured(Perceptron):
    """Gives metrics in every leaf, and one in some, whose name may come first on another rank; counts tokens."""

    def model(self, cfg):
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, 4))

    def train_data(self, cfg):
        generator = torch.Generator().manual_seed(1)
        return torch.randn(ROWS, 3, 6, 6, generator=generator), torch.arange(ROWS) % 4

    def loss(self, model, batch):
        found = model(batch[0])
        loss = functional.cross_entropy(found, batch[1])
        if not model.training:
            return loss
        told = {"accuracy": (found.argmax(1) == batch[1]).float().mean(), "tokens": int(batch[1].sum()) + 1}
        late = {"late": float(found[0, 0])} if self.calls_of(batch) else {}
        return {**late, **told, "loss": loss, "logits": found}

    def calls_of(self, batch):
        """Return whether this batch gives a further metric: about one in four, the same with any number of ranks."""
        return batch[0].sum().item() > 15.0

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch)}


class Convolutions(Perceptron):
    """Running statistics."""

    def model(self, cfg):
        first = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        second = nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, momentum=None)
        return nn.Sequential(*first, nn.ReLU(), *second, nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 4))


class Streamed(Perceptron):
    """Data that can only be iterated over: every rank reads all of them."""

    def train_data(self, cfg):
        return Stream()

    def val_data(self, cfg):
        return None


class Stream(torch.utils.data.IterableDataset):
    """Batches that draw."""

    def __len__(self):
        return 13

    def __iter__(self):
        for row in range(13):
            yield torch.randn(4, 3, 6, 6), torch.tensor([row, row + 1, row + 2, 3]) % 4


class Plain(Perceptron):
    """Without draws: exact sums have the bits of plain accumulation."""

    def model(self, cfg):
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, 4))
