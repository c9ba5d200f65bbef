"""Heads of transformers' models, masked, lifted and removed in a run that is cut short: it ends as one that was not."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.daemon.headed_task import PERIOD, WORDS, Repeats
from tolariad.core import messages as m
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.trainer.pruning.plan import joined, plan_of
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.verify import find_groups

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")
pytest.importorskip("transformers", reason="transformers (extra `transformers`) is not installed")

TASK = f"{Path(__file__).parents[2] / 'daemon' / 'headed_task.py'}:Repeats"
EPOCHS = 5  # of six steps


class Life:
    """Orders that act before updates of a run, and the model that they leave, to plan the next ones by."""

    def __init__(self, kind):
        torch.manual_seed(0)
        self.model = Repeats().model(SimpleNamespace(task_options={"model": kind})).eval()
        self.example = (torch.randint(3, WORDS, (4, 2 * PERIOD - 1)),)
        self.in_force, self.orders = [], []

    def groups(self):
        return find_groups(self.model, self.example).groups

    def mask(self, before, heads=(), channels=()):
        """Mask these heads of each attention layer, and these channels of each layer between."""
        groups = self.groups()
        chosen = {one.name: heads if one.kind is UnitKind.HEAD else channels for one in groups}
        plan = plan_of(self.model, groups, {name: ones for name, ones in chosen.items() if ones}, self.example)
        self.in_force.append(plan)
        cycle = len(self.orders) + 1
        masks = {"units": plan.units, "plan": plan.text, "sha256": plan.masks.sha256}
        self._add(before, m.MaskUnits(cycle=cycle, grace_steps=1, window_steps=3, cause=100 + cycle, **masks))
        return self

    def release(self, before):
        self.in_force.pop()
        self._add(before, m.ReleaseMasks(cycle=len(self.orders), cause=101 + len(self.orders)))
        return self

    def compact(self, before):
        whole = joined(self.in_force, self.model)
        self.in_force = []
        cycle = len(self.orders)
        self._add(before, m.CompactModel(cycle=cycle, units=whole.units, removal=whole.text, cause=101 + cycle))
        self.model = copy.deepcopy(self.model)
        remove(self.model, whole.gone)
        return self

    def _add(self, before, order):
        self.orders.append(m.ScriptOrder(before, 0, len(self.orders) + 1, order))


@functools.cache
def life(kind):
    """Heads, heads and channels, the latter lifted; again, removed; another head of what is left, removed too."""
    with torch.random.fork_rng():
        found = Life(kind).mask(3, heads=(1,)).mask(6, heads=(3,), channels=(2, 3, 11)).release(9)
        found = found.mask(11, heads=(0,), channels=(0, 23)).compact(15).mask(19, heads=(1,)).compact(23)
        return tuple(found.orders)


@pytest.fixture
def trained(daemon_in, configured):
    def train(kind, name, *cuts, **more):
        usual = {"task_options": {"model": kind}, "batch_size": 16, "epochs": EPOCHS, "checkpoint_interval_epochs": 1}
        config = configured(TASK, **{**usual, "ema": {"decay": 0.9}, "audit": {"every_steps": 1}, **more})
        daemon = daemon_in(name, EPOCHS, script_orders=life(kind))
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(config)
        setup = daemon.train_here(config)
        assert daemon.ended
        daemon.reruns()
        assert daemon.of(m.AuditDiffered, m.LrViolationDetected) == []
        return daemon, setup

    return train


OPTIONS = (
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"accumulate": 2, "batch_size": 8},
    {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}},
    {"optimizer": {"name": "cautious_adamw", "live_mean": True}},
    {"optimizer": {"name": "adam", "amsgrad": True}},
    {"optimizer": {"name": "rmsprop", "momentum": 0.5, "centered": True}},
    {"optimizer": {"name": "adagrad"}},
)


@pytest.mark.parametrize(
    ("kind", "options"), [("bert", {}), ("llama", {}), ("gpt2", {}), *(("gpt2", one) for one in OPTIONS)]
)
@pytest.mark.torture
def test_heads_are_masked_and_removed_in_a_run_that_is_cut_short(trained, kind, options):
    """Each trainer goes on from the checkpoint before its cut."""
    calm, setup = trained(kind, "calm", **options)
    names = {one.name: one.width for one in find_groups(setup.model, Life(kind).example).groups}

    # Of four heads one is left in each layer, of 24 channels 22.
    assert set(names.values()) == {22}
    # No cut is before the first checkpoint, nor in the epoch of another one.
    for cuts in ((7, 13, 19, 25), (8, 14, 20, 26), (10, 16, 22, 28), (12, 18, 24), (9, 15, 23)):
        cut, _ = trained(kind, f"cut {cuts}", *cuts, **options)
        assert cut.files("end") == calm.files("end"), cuts
