"""A task with test data: a small network over points. `task_options: {form: ...}` chooses what `evaluate` returns.

`slow`: seconds for each step.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.lr import controller_of

FILE = __file__


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :3].argmax(1)


class Tested:
    """`evaluate` returns sums with counts, means by name, or one mean. `calls`: the task's own state."""

    def __init__(self):
        self.calls = 0

    def model(self, cfg):
        self.slow = cfg.task_options.get("slow", 0.0)
        self.form = cfg.task_options.get("form", "sums")
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    def train_data(self, cfg):
        return points(60, 1)

    def val_data(self, cfg):
        return points(30, 2)

    def test_data(self, cfg):
        return points(25, 3)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        logits, labels = model(batch[0]), batch[1]
        correct = (logits.argmax(1) == labels).sum()
        loss = functional.cross_entropy(logits, labels)
        return {
            "sums": {"loss": (loss * len(labels), len(labels)), "correct": (correct, len(labels))},
            "means": {"loss": loss, "correct": correct / len(labels), "state": float(self.calls)},
            "one": loss,
            "nan": {"loss": loss, "broken": float("nan"), "high": float("inf")},
        }[self.form]

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]

    def on_step_end(self, model, step):
        self.calls += 1
        time.sleep(self.slow)


class Untested(Tested):
    """It has no test data."""

    test_data = None


class Raises(Tested):
    """Its third batch of test data fails."""

    def evaluate(self, model, batch):
        if len(batch[0]) == 5:
            raise ZeroDivisionError("lost")
        return super().evaluate(model, batch)


class Widens(Tested):
    """Its model has grown after the second step."""

    def on_step_end(self, model, step):
        if step == 2:
            controller_of(model).grow("widen", by=2)

    def grow(self, model, change):
        by = change.arguments["by"]
        first, norm, last = model[0], model[1], model[4]
        with torch.no_grad():
            first.weight = nn.Parameter(torch.cat([first.weight, 0.1 * torch.randn(by, 4)]))
            first.bias = nn.Parameter(torch.cat([first.bias, torch.zeros(by)]))
            last.weight = nn.Parameter(torch.cat([last.weight, 0.1 * torch.randn(3, by)], 1))
        model[1] = nn.BatchNorm1d(norm.num_features + by)
        first.out_features += by
        last.in_features += by
