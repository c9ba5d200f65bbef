"""A restore copies: no later step changes the state that was read, for any optimizer, in a live and in a new run."""

from __future__ import annotations

import os
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.checkpoints.own import Model, OwnTask, bits, loaded, save, step
from tests.trainer.checkpoints.test_restore import OPTIMIZERS
from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.configured import Groups
from tolariad.trainer.rollback.snapshot_slots import Slots, growth_of, slot_bytes, verify

AT = Position(3, 1, 3)


class Loose(Model):
    """A model with the same names and no tied tensors."""

    def __init__(self):
        super().__init__()
        self.tied.weight = nn.Parameter(self.first.weight.detach().clone())


class Hoarder(torch.optim.SGD):
    """An optimizer with unusual state: lists, nested dicts, arrays, numbers, its own key, and more than the two usual
    maps.
    """

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.seen = 0
        self.trace = torch.zeros(2)

    @torch.no_grad()
    def step(self, closure=None):
        self.seen += 1
        self.trace += self.seen
        held = self.state["all"]
        held["steps"] = held.get("steps", 0) + 1
        for group in self.param_groups:
            for parameter in group["params"]:
                one = self.state[parameter]
                if not one:
                    one.update(
                        step=0, past=[], array=np.zeros(2), deep=OrderedDict(mean={"of": torch.zeros_like(parameter)})
                    )
                one["step"] += 1
                one["past"] = [parameter.grad.clone(), *one["past"][:1]]
                one["past"][-1].mul_(0.5)
                one["array"] += one["step"]
                one["deep"]["mean"]["of"].lerp_(parameter.grad, 0.1)
                parameter.sub_(one["deep"]["mean"]["of"] + one["past"][-1], alpha=group["lr"] * 0.01 * self.seen)

    def state_dict(self):
        return {**super().state_dict(), "seen": self.seen, "trace": self.trace}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.seen, self.trace = state_dict["seen"], state_dict["trace"]


def _by_torch(name, **options):
    def made(self, model, cfg):
        if name == "Muon":
            for parameter in model.norm.parameters():
                parameter.requires_grad_(False)
        parameters = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]
        return getattr(torch.optim, name)(parameters, **{**OPTIMIZERS[name], **options})

    return made


KINDS = {name: _by_torch(name) for name in OPTIMIZERS}
KINDS |= {f"{name} foreach": _by_torch(name, foreach=True) for name in ("Adam", "NAdam", "ASGD")}
KINDS |= {f"{name} fused": _by_torch(name, fused=True) for name in ("AdamW", "Adagrad", "SGD")}
KINDS["Hoarder"] = lambda self, model, cfg: Hoarder(model.parameters())
KINDS["CautiousAdamW"] = lambda self, model, cfg: CautiousAdamW(model.parameters())


class Sparse(nn.Module):
    """Rows of an embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(6, 4, sparse=True)

    def forward(self, x):
        return self.rows((x[:, 0].abs() * 5).long() % 6)


@pytest.fixture(params=[*KINDS, "SparseAdam", "SGD sparse"])
def own(request, made, monkeypatch):
    """Builds of a run with this optimizer."""
    kind = KINDS.get(request.param)
    if kind is None:
        monkeypatch.setattr(OwnTask, "model", lambda self, cfg: Sparse())
        # No momentum: with sparse gradients it would be sparse too, which no file holds.
        plain = torch.optim.SparseAdam if request.param == "SparseAdam" else torch.optim.SGD
        kind = lambda self, model, cfg: plain(model.parameters(), lr=0.1)  # noqa: E731
    monkeypatch.setattr(OwnTask, "optimizer", kind)
    monkeypatch.setattr(
        "tolariad.trainer.optim.configured._own", lambda made: Groups(made, (None,) * len(made.param_groups))
    )
    return made


def trained(setup, *seeds):
    for seed in seeds:
        step(setup, seed)
    return setup


@pytest.mark.sample(6)
def test_a_checkpoint_can_be_restored_again_and_again_whatever_is_trained_in_between(tmp_path, own):
    """It is restored into a live run, whose optimizer has state, and into a new one: same bits, same next steps."""
    one = trained(own(), 0, 1, 2)
    held = loaded(tmp_path, save(one, tmp_path))
    first = bits(one, tmp_path, "first")
    rng = torch.get_rng_state()
    after = bits(trained(one, 3, 4), tmp_path, "after")
    assert first != after
    for name, setup in (("living", one), ("fresh", own()), ("living again", one)):
        assert restore(setup, held) == AT
        assert bits(setup, tmp_path, name) == first, name
        assert torch.equal(torch.get_rng_state(), rng), name
        assert bits(trained(setup, 3, 4), tmp_path, f"{name} on") == after, name


@pytest.mark.sample(6)
def test_no_step_changes_a_snapshot_that_was_restored(own):
    """A snapshot's tensors are views of memory that a later rollback or trainer must find unchanged."""
    one = trained(own(), 0, 1, 2)
    live = capture(one, AT)
    size = -(-slot_bytes(live, growth=growth_of(live)) // 4096) * 4096
    descriptor = os.memfd_create("ring")
    try:
        os.ftruncate(descriptor, size)
        slots = Slots(descriptor, m.Ring(1, size))
        table, digest = slots.finish(0, slots.copy(0, live), (), "")
        for setup in (one, own()):
            held = slots.read(0, digest)
            restore(setup, taken_apart(held.snapshot))
            trained(setup, 3, 4)
            verify(held)
        assert table.groups
    finally:
        os.close(descriptor)


def test_two_tensors_never_come_back_into_one_that_the_model_shares(tmp_path, made, monkeypatch):
    """Restoring one would overwrite the other: refused with both names, before any change."""
    tied = trained(made(), 1)
    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: Loose())
    loose = trained(made(), 2)
    before = bits(tied, tmp_path, "before")
    with pytest.raises(CheckpointUnfit, match=r"tied\.weight and first\.weight are one tensor .* differ") as caught:
        restore(tied, loaded(tmp_path, save(loose, tmp_path, "loose")))
    assert caught.value.file == "model-00000.safetensors"
    assert bits(tied, tmp_path, "after") == before
