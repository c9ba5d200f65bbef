"""A validation returns means over all samples and changes nothing else."""

from __future__ import annotations

import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tolariad.trainer.data.feed import TensorFeed
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.validate import validate


class Task:
    def evaluate(self, model, batch):
        assert not model.training
        assert not torch.is_grad_enabled()
        noise = torch.rand(()) + random.random() + np.random.rand()
        return {"mean": (batch[0].sum(), len(batch[0])), "drawn": (noise, 1)}


def run(model):
    setup = SimpleNamespace(
        task=Task(),
        model=model,
        validation=TensorFeed([torch.arange(10.0)], 4, None),
        average=None,
        device=torch.device("cpu"),
        rng_seed=3,
        forward=nullcontext,
    )
    beats = []
    found = validate(setup, lambda: beats.append(1))
    assert len(beats) == 1 + 3
    return found


def test_means_are_over_samples_not_batches():
    """The last, smaller batch weighs less."""
    found = run(nn.ReLU())
    assert found.means["mean"] == pytest.approx(4.5)
    assert found.samples == 10


def test_generators_and_modes_are_as_before():
    """Validation draws the same numbers every time, and does not affect training."""
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1))
    model[1].eval()
    state, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = run(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    torch.rand(5), np.random.rand(5)
    assert run(model) == first


def test_a_metric_without_a_name_is_refused_with_a_sentence(monkeypatch):
    """Otherwise the trainer would be ended five times for a report that cannot be read."""
    monkeypatch.setattr(Task, "evaluate", lambda self, model, batch: {1: (batch[0].sum(), len(batch[0]))})
    with pytest.raises(SetupRefused, match="by names; 1 is a int"):
        run(nn.ReLU())
