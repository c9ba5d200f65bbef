"""Seeds beside what else a run may have: workers, parameter groups, half precision, a model that a hook changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.library.inside import written_at_once
from tests.library.seeds import Gardener, Steadfast, line_of, network, train
from tests.recorded import Stop, events_of, of, pieces, sound
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core.state.run_state import RunState, fold
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lr import controller_of
from tolariad.trainer.seeds import SeedSlot

FULL = {"rollback": {"fast_path_enabled": False}, "ema": {"decay": 0.9}}
KINDS = {
    "grown": FULL,
    "workers": {**FULL, "workers": 1},
    "groups": {
        **FULL,
        "optimizer": {"name": "sgd", "momentum": 0.9, "groups": [{"match": "*.bias", "base_lr": 0.003}]},
    },
    "bf16": {**FULL, "precision": "bf16", "accumulate": 2, "epochs": 6},
}
GROWS, DIES = 9, 14


class Deepening:
    """A task whose hook makes the model deeper after step 9."""

    def on_step_end(self, model, step):
        super().on_step_end(model, step)
        if step == GROWS:
            controller_of(model).grow("deepen")

    def grow(self, model, change):
        model.append(nn.Linear(4, 4))


class Disturbed(Deepening, Steadfast):
    """Grows, and gives its orders whoever trained before."""


class Calm(Deepening, Gardener):
    """Grows, and gives its orders at the given steps."""


@pytest.mark.parametrize(
    "kind", ["grown", *(pytest.param(one, marks=pytest.mark.torture) for one in KINDS if one != "grown")]
)
def test_a_run_with_seeds_that_died_and_went_back_ends_as_one_that_did_not(tmp_path, monkeypatch, kind):
    """It dies within the second epoch, and later goes back to the first one's end, over a cull and a hook's change."""
    written_at_once(monkeypatch.setattr)
    run_dir, options = tmp_path / "run", KINDS[kind]
    disturbed, calm = (Disturbed, Calm) if kind == "grown" else (Steadfast, Gardener)

    def die(step):
        if step >= DIES:
            # The target of the rollback.
            wait_for(lambda: any(one.step == 8 for one in of(events_of(run_dir), m.CheckpointCommitted)))
            raise Stop

    with pytest.raises(Stop):
        train(run_dir, disturbed(also=die), **options)
    train(run_dir, disturbed(back=(17, m.Rollback(step=8))), **options)
    events = sound(run_dir)
    train(tmp_path / "calm", calm(line_of(fold(RunState(), events))), **options)

    assert [one.step for one in of(events, m.RolledBack)] == [8]
    assert pieces(run_dir) == pieces(tmp_path / "calm")
    assert len(of(events, m.ArchitectureChanged)) == (2 if kind == "grown" else 0)


@pytest.mark.parametrize("has_slots", [True, False])
def test_a_slot_that_a_hook_adds_is_refused_with_what_to_do(tmp_path, has_slots):
    """It could never hold a seed: the slots of a run are those that its task builds. Nothing of the change stays."""

    class Adding(Deepening, Gardener):
        def grow(self, model, change):
            model.append(SeedSlot("late"))

    torch.manual_seed(3)
    model = network() if has_slots else nn.Sequential(nn.Linear(16, 4))
    with pytest.raises(SetupRefused, match=r"adds the slot late, .* name its place in seed_slots\(model\)"):
        train(tmp_path / "run", Adding({}), model=model, **FULL)
    assert not any(isinstance(one, SeedSlot) and one.name == "late" for one in model)
