"""Slow work is announced before it begins: a hang is judged by the activity of the last heartbeat."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from tolariad.channel import Activity
from tolariad.trainer import build
from tolariad.trainer.checkpoints import start
from tolariad.trainer.tasks.task import FoundTask


class Watched:
    """A task that records the trainer's activity in each of its slow methods."""

    def __init__(self, seen, activity):
        self.seen, self.activity = seen, activity

    def note(self, place):
        # A fingerprint of the data is made while the run is built.
        if (now := self.activity()) is not Activity.IMPORT:
            self.seen.setdefault(place, now)

    def model(self, cfg):
        return nn.Linear(2, 1)

    def train_data(self, cfg):
        task = self

        class Slow(BatchSampler):
            def __iter__(self):
                task.note("order")
                return super().__iter__()

        data = TensorDataset(torch.ones(8, 2))
        return DataLoader(data, batch_sampler=Slow(SequentialSampler(data), 4, drop_last=False))

    def val_data(self, cfg):
        task = self

        class Slow:
            def __len__(self):
                return 1

            def __getitem__(self, index):
                task.note("validation")
                return torch.ones(2)

        return Slow()

    def loss(self, model, batch):
        return model(batch[0]).mean()

    def evaluate(self, model, batch):
        return {}

    def on_step_end(self, model, step):
        self.note("step hook")

    def on_epoch_end(self, model, epoch, metrics):
        self.note("epoch hook")


def test_every_slow_place_is_announced_before_it_is_entered(daemon_in, configured, monkeypatch):
    """Otherwise slow work would be judged by the timeout of the activity before it."""
    daemon = daemon_in("run", 1)
    seen: dict[str, Activity] = {}
    task = Watched(seen, lambda: daemon.end.page.heartbeat.activity)
    monkeypatch.setattr(build, "find_task", lambda _: FoundTask(task, ""))
    load = start.load

    def noting_load(*arguments):
        task.note("restore")
        return load(*arguments)

    monkeypatch.setattr(start, "load", noting_load)
    daemon.exit_after_step = 1
    daemon.train_here(configured("digits", epochs=1, batch_size=4))
    daemon.train_here(configured("digits", epochs=1, batch_size=4))

    assert daemon.ended
    assert seen == {
        "restore": Activity.RESTORE,
        "order": Activity.DATA,
        "validation": Activity.VALIDATE,
        "step hook": Activity.HOOK,
        "epoch hook": Activity.HOOK,
    }
