"""Buffers that changed since the task built them are restored, in the same model only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.checkpoints.own import OwnTask, bits, loaded, save, step
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.checkpoints.restore import restore


class Moving(nn.Module):
    """A model with a growing cache, running means created by the first batch, a buffer registered later, one of a new
    dtype.
    """

    def __init__(self, width: int = 2):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, width)
        seen = torch.zeros(1)
        self.first.register_buffer("seen", seen)
        self.second.register_buffer("seen", seen)
        self.register_buffer("mean", None)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int32))

    def forward(self, x):
        if self.training:
            self.first.seen = self.second.seen = torch.cat([self.first.seen, x[:1, 0]])
            self.mean = x.mean(0) if self.mean is None else self.mean * 0.9 + x.mean(0) * 0.1
            self.count = self.count.long() + 1
            if not hasattr(self, "cache"):
                self.register_buffer("cache", torch.ones(3), persistent=False)
            self.cache = self.cache * 0.5
        shift = self.first.seen.mean() + self.cache.sum() + self.count.sum()
        return self.second(self.first(x - self.mean)) + shift


@pytest.fixture
def moving(made, monkeypatch):
    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: Moving())
    return made


@pytest.mark.parametrize("goes_on", [0, 3], ids=["fresh", "living"])
def test_training_goes_on_as_if_nothing_had_happened(tmp_path, moving, goes_on):
    """Restored into a new build, and after later steps: the same bits, and shared tensors stay shared."""
    one, other = moving(), moving()
    for seed in range(3):
        step(one, seed)
    report = save(one, tmp_path)
    for seed in (3, 4):
        step(one, seed)
    for seed in range(goes_on):
        step(other, 90 + seed)
    restore(other, loaded(tmp_path, report))
    model = other.model

    # Two forward passes a step.
    assert (model.first.seen.numel(), model.count.dtype) == (7, torch.int64)
    assert model.first.seen is model.second.seen
    assert "cache" not in model.state_dict()
    for seed in (3, 4):
        step(other, seed)
    assert bits(other, tmp_path, "other") == bits(one, tmp_path, "one")


def test_back_at_the_beginning_what_came_since_is_gone(tmp_path, moving):
    """A name without a tensor is restored as such, and a buffer registered later is removed."""
    one, untouched = moving(), moving()
    report = save(one, tmp_path)
    for seed in range(3):
        step(one, seed)
    restore(one, loaded(tmp_path, report))

    assert one.model.mean is None
    assert not hasattr(one.model, "cache")
    assert one.model.first.seen is one.model.second.seen
    assert dict(one.model.named_buffers()).keys() == dict(untouched.model.named_buffers()).keys()
    for setup in (one, untouched):
        step(setup, 7)
    assert bits(one, tmp_path, "one") == bits(untouched, tmp_path, "untouched")


@pytest.mark.parametrize("how", ["built", "grown", "parameter"])
def test_another_model_is_refused_by_name_and_left_as_it_was(tmp_path, moving, monkeypatch, how):
    """Refused: another structure, an additional module, a parameter of another shape."""
    one = moving()
    step(one, 0)
    report = save(one, tmp_path)
    if how == "built":
        monkeypatch.setattr(OwnTask, "model", lambda self, cfg: nn.Sequential(Moving()).append(nn.BatchNorm1d(2)))
    other = moving()
    if how == "grown":
        other.model.add_module("norm", nn.BatchNorm1d(2, affine=False))
    if how == "parameter":
        other.model.second.bias = nn.Parameter(torch.zeros(3))
    before = {name: tensor.clone() for name, tensor in other.model.state_dict().items()}
    with pytest.raises(CheckpointUnfit):
        restore(other, loaded(tmp_path, report))

    after = other.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
