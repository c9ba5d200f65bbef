"""A model that grows during training: an older checkpoint is refused, and the next process starts from it."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.library.inside import state_of, written_at_once
from tests.library.small import CONFIG, bits, data, loaders, made, network
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.trainer.lr import controller_of
from tolariad.trainer.optim import OptimizerRebuildCoordinator

GROWS, BACK, DIES = 3, 5, 20
FULL_ONLY = {"rollback": {"fast_path_enabled": False}}


@pytest.fixture(autouse=True)
def in_step(monkeypatch):
    """Checkpoints are there at the same steps on a slow machine as on a quick one."""
    written_at_once(monkeypatch.setattr)


class Growing:
    """Adds a layer after one step; `also` is called after each."""

    def __init__(self, also=lambda step: None, added=()):
        self.also = also
        self.added = added

    def optimizer(self, model, cfg):
        self.own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return self.own

    def on_step_end(self, model, step):
        if step == GROWS:
            coordinator = OptimizerRebuildCoordinator(self.own, model, controller_of(self.own))
            model.extend([*self.added, nn.Linear(4, 4)])
            with torch.no_grad():
                model[-1].weight.copy_(torch.eye(4))
                model[-1].bias.zero_()
            assert coordinator.rebuild()
        self.also(step)


def train(run_dir, also=lambda step: None, tolaria=None):
    """Train three epochs of eight steps, and return the bits."""
    tolaria, model = tolaria or made(run_dir, **FULL_ONLY), network()
    assert tolaria.train(model, *loaders(validated=False), 3, task=Growing(also)).phase == "completed"
    return bits(model)


class Silent(Growing):
    """Adds a layer and tells nobody, not even the optimizer."""

    def on_step_end(self, model, step):
        if step == GROWS:
            model.append(nn.Linear(4, 4))


@pytest.mark.parametrize(("kind", "said_after"), [(Growing, GROWS), (Silent, 8)])
def test_growth_that_nobody_recorded_is_said_once(tmp_path, caplog, kind, said_after):
    """A rebuild of the optimizer shows it at once, the next checkpoint at the latest; with what to do instead."""
    loader = DataLoader(data(), batch_size=12, shuffle=True)
    tolaria = made(tmp_path, **FULL_ONLY)
    assert tolaria.train(network(), loader, None, 3, task=kind()).phase == "completed"
    (said,) = (one.getMessage() for one in caplog.records if "cannot repeat" in one.getMessage())

    assert said.startswith(
        f"the model changed up to step {said_after} by code that the run cannot repeat (5.bias, 5.weight)"
    )
    assert "ask for it by rates.grow() (docs/task.md)" in said
    assert of(events_of(tmp_path), m.ArchitectureChanged) == []


def test_a_rollback_over_the_growth_costs_no_checkpoint(tmp_path):
    """It is refused by name; the next process starts from it, skips the grown model's checkpoints, and ends with the
    same bits.
    """
    calm = train(tmp_path / "calm")
    run_dir = tmp_path / "run"
    tolaria = made(run_dir, **FULL_ONLY)

    def trouble(step):
        if step == BACK:
            assert tolaria.rollback(0)
        if step == DIES:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(run_dir, trouble, tolaria)
    first = of(events_of(run_dir), m.CheckpointCommitted)[0].id
    (refused,) = of(events_of(run_dir), m.CheckpointUnfit)
    assert (refused.id, refused.context, refused.file) == (first, "", "model-00000.safetensors")
    assert "5." in refused.why
    assert refused.why in of(events_of(run_dir), m.RollbackAborted)[0].why

    assert train(run_dir) == calm
    events = events_of(run_dir)
    (passed_over, *more) = of(events, m.CheckpointUnfit)[1:]
    started = of(events, m.TrainingStarted)[-1]
    assert (started.step, started.checkpoint) == (0, first)
    assert passed_over.context
    assert first not in {passed_over.id, *(one.id for one in more)}
    assert of(events, m.CheckpointRejected) == []
    assert of(events, m.RerunFinished)[-1].first_difference is None


def test_a_model_that_outgrows_its_slots_has_no_fast_tier_and_says_so_once(tmp_path):
    """The first snapshot that does not fit reports the size; no more are ordered, and the run continues."""
    opened = threading.Event()
    tolaria = Tolaria({"tolaria": {**CONFIG["tolaria"], "snapshots": {"every": 1, "watch_steps": 1}}}, run_dir=tmp_path)

    def wait_for_the_ring(step):
        if step == GROWS - 1:
            wait_for(lambda: state_of(tolaria).snapshots.ring)
            opened.set()

    hooks = Growing(wait_for_the_ring, [nn.Linear(4, 20_000), nn.Linear(20_000, 4)])
    loader = DataLoader(data(), batch_size=12, shuffle=True)
    assert tolaria.train(network(), loader, None, 3, task=hooks).phase == "completed"
    events = events_of(tmp_path)
    (off,) = of(events, m.FastTierDisabled)

    assert opened.is_set()
    assert re.search("a snapshot needs [0-9]+ bytes now, a slot has", off.why)
    failed = [one for one in of(events, m.SnapshotAborted) if "a slot has" in one.why]
    assert len(failed) <= 2
    assert [one for one in events[events.index(off) :] if isinstance(one, m.SnapshotBegun)] == []
