"""A seed with parameters that are not finite: while nothing depends on it it blocks nothing and is culled.

As a part of the model it blocks every snapshot, and the run goes back.
"""

from __future__ import annotations

import math
import time

import torch

from tests.library.inside import ordered, state_of
from tests.library.seeds import PLAN, Gardener, train
from tests.library.test_detection import events_of, of
from tests.library.test_library import bits
from tolariad.core.rollback import words as rb
from tolariad.core.seeds import words as sd
from tolariad.core.seeds.stages import Stage
from tolariad.core.snapshots import words as sn

MEMORY = {"snapshots": {"every": 1, "watch_steps": 1}}


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
        time.sleep(0.05)  # a snapshot is hashed meanwhile, and kept at the next boundary
        found = [one for one in state_of(task.run).snapshots.promoted if one.step > task.at]
        if found and not gone_back:
            gone_back.append(step)
            assert ordered(task.run, rb.Rollback(to=found[-1].id, tier=rb.Tier.FAST))

    task = Poisoner({step: PLAN[step] for step in (2, 3)}, 4, back)
    model = train(tmp_path / "run", task, **MEMORY)
    alone = train(tmp_path / "alone", Gardener({}), **MEMORY)
    events = events_of(tmp_path / "run")

    (done,) = of(events, rb.RolledBack)
    assert done.step > task.at
    assert [one.why for one in of(events, sn.SnapshotAborted) if "not finite" in one.why] == []
    (culled,) = [one for one in of(events, sd.SeedMoved) if one.stage is Stage.CULLED]
    assert (culled.by, culled.reason) == ("tolariad", "its parameters are not finite, so it cannot recover")
    assert culled.applied_before_step == 9, "at the end of the epoch"
    assert bits(model) == bits(alone)


def test_a_sick_seed_that_is_a_part_of_the_model_is_in_no_snapshot(tmp_path):
    """The run goes back to a snapshot from before, by itself, and ends with the seed it had."""
    task = Poisoner(PLAN, 21, also=lambda _: time.sleep(0.05))
    model = train(tmp_path / "run", task, epochs=4, **MEMORY)
    events = events_of(tmp_path / "run")

    assert of(events, rb.RolledBack)[0].step <= 21
    taken = of(events, sn.SnapshotTaken)
    sick = [one for one in of(events, sn.SnapshotAborted) if "not finite" in one.why]
    assert taken
    assert all(one.why.startswith("model.3.seed.") for one in sick)
    assert model[3].stage is Stage.FOSSILIZED
    assert all(parameter.isfinite().all() for parameter in model.parameters())
