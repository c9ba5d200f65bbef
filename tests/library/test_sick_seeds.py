"""A seed with parameters that are not finite: while nothing depends on it it blocks nothing and is culled.

As a part of the model it blocks every snapshot, and the run goes back.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests import order_events
from tests.library.inside import ordered, state_of
from tests.library.seeds import IN_STEP, PLAN, QUICK, Gardener, hashed_at_once, network, train
from tests.library.small import bits
from tests.recorded import events_of, of
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage


@pytest.fixture(autouse=True)
def in_step(monkeypatch):
    """Snapshots do not depend on the load of the machine."""
    hashed_at_once(monkeypatch.setattr)


class Poisoner(Gardener):
    """Makes the seed in slot `a` NaN once, after step `at`; then calls `also(step)` after each step."""

    def __init__(self, plan, at, also=lambda step: None):
        super().__init__(plan, also)
        self.at, self.is_done = at, False

    def on_step_end(self, model, step):
        super().on_step_end(model, step)
        if step == self.at and not self.is_done:
            self.is_done = True
            with torch.no_grad():
                next(model[3].seed.parameters()).fill_(math.nan)


def test_a_sick_seed_in_training_is_culled_and_blocks_nothing(tmp_path):
    """Snapshots are taken and gone back to as before, and the host has the bits of a run without it."""
    gone_back = []

    def back(step):
        found = [one for one in state_of(task.run).snapshots.promoted if one.step > task.at]
        if found and not gone_back:
            gone_back.append(step)
            assert ordered(task.run, m.Rollback(to=found[-1].id, tier=m.Tier.FAST))

    task = Poisoner({step: PLAN[step] for step in (2, 3)}, 4, back)
    model = train(tmp_path / "run", task, **IN_STEP)
    alone = train(tmp_path / "alone", Gardener({}), **IN_STEP)
    events = events_of(tmp_path / "run")

    (done,) = of(events, m.RolledBack)
    assert done.step > task.at
    assert [one.why for one in of(events, m.SnapshotAborted) if "not finite" in one.why] == []
    culled = [one for one in of(events, order_events.acted(m.MoveSeed)) if one.order.stage is Stage.CULLED]
    why = "its parameters are not finite, so it cannot recover"
    # At the end of the epoch; again if the rollback went over it.
    assert {(one.applied_before_step, one.by, one.reason) for one in culled} == {(9, "tolariad", why)}
    assert bits(model) == bits(alone)


def test_a_sick_seed_that_is_a_part_of_the_model_is_in_no_snapshot(tmp_path):
    """The run goes back to a snapshot from before, by itself, and ends with the seed it had."""
    task = Poisoner(PLAN, 21)
    model = train(tmp_path / "run", task, epochs=4, **IN_STEP)
    events = events_of(tmp_path / "run")

    assert of(events, m.RolledBack)[0].step <= 21
    taken = of(events, m.SnapshotTaken)
    sick = [one for one in of(events, m.SnapshotAborted) if "not finite" in one.why]
    assert taken
    assert all(one.why.startswith("model.3.seed.") for one in sick)
    assert model[3].stage is Stage.FOSSILIZED
    assert all(parameter.isfinite().all() for parameter in model.parameters())


BREAKING = """
from torch import nn


class Breaking(nn.Module):
    is_broken = False

    def __init__(self, example):
        super().__init__()
        self.scale = nn.Parameter(example.new_ones(()))

    def forward(self, h):
        if Breaking.is_broken:
            raise ValueError("no more")
        return h * self.scale


class Mine:
    def build(self, example):
        return Breaking(example)
"""


def test_a_seed_whose_module_raises_can_be_culled(tmp_path):
    """It is not run for that. It passes no gate, and an epoch's end has no drift of it; the run goes on."""
    file = tmp_path / "own.py"
    file.write_text(BREAKING)

    def breaks(step):
        if step == 4:
            type(model[3].seed).is_broken = True

    model = network()
    plan = {2: m.SeedGerminate(slot="a", blueprint="Mine"), 9: m.SeedAdvance(slot="a"), 11: m.SeedCull(slot="a")}
    options = {"rollback": {"fast_path_enabled": False}, "seeds": {**QUICK, "blueprints": [f"{file}:Mine"]}}
    train(tmp_path / "run", Gardener(plan, breaks), model=model, **options)
    events = events_of(tmp_path / "run")

    (aborted,) = of(events, order_events.aborted(m.MoveSeed))
    assert "raised ValueError: no more" in aborted.why
    (measured,) = of(events, m.SeedsMeasured)[:1]
    assert [(one.drift, one.parameters) for one in measured.seeds] == [(-1.0, 1)]
    assert [
        one.applied_before_step for one in of(events, order_events.acted(m.MoveSeed)) if one.order.stage is Stage.CULLED
    ] == [12]
