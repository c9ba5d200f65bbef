"""A task with state that is hard to capture, and its checkpoints."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from tests.recorded import files_of
from tolariad.core import messages as m
from tolariad.trainer.checkpoints.restore import load
from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.checkpoints.snapshot import Position


class Model(nn.Module):
    """A tied weight, a buffer that state_dict() leaves out, BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.count += 1
        return self.tied(self.drop(self.norm(self.first(x))))


class OwnTask:
    """Its optimizer is chosen by `task_options`."""

    def model(self, cfg):
        return Model()

    def train_data(self, cfg):
        return (torch.randn(8, 4),)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        return model(batch[0]).square().mean()

    def evaluate(self, model, batch):
        return {}

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters())

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    seen = (1, "two", np.float32(0.5))


def step(setup, seed):
    """Make one update on a new batch."""
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))

    def closure():
        setup.optimizer.zero_grad()
        loss = setup.task.loss(setup.model, (batch,))
        loss.backward()
        return loss

    closure()
    setup.optimizer.step(closure)


def written_by(saver, order, position):
    """Take a checkpoint: order, copy, write, report."""
    saver.order(order)
    saver.capture(position)
    while (report := saver.finished()) is None:
        time.sleep(0.001)
    return report


def save(setup, root, id_="ck", position=Position(3, 1, 3)):  # noqa: B008 - frozen
    order = m.TakeCheckpoint(id=id_, reason=m.CheckpointReason.ORDERED)
    return written_by(Saver(setup, root, "ff"), order, position)


def loaded(root, report):
    return load(root / report.id, report.manifest)


def bits(setup, root, id_):
    """Return the files for the setup's state: equal states give equal bytes."""
    save(setup, root, id_)
    return files_of(root / id_)
