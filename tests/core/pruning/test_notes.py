"""The notes on requests for pruning that a run cannot fulfil."""

from __future__ import annotations

import pytest

from tolariad.core.calc.pruning.notes import first_masks, prune_notes
from tolariad.core.calc.pruning.phase import PruningPhase, is_cycle_due, phase_at
from tolariad.core.calc.pruning.plan import PrunePlan
from tolariad.core.calc.settings.reading import read_settings


def notes(**keys):
    return list(prune_notes(read_settings({"prune": {"enabled": True}, **keys})))


def test_a_run_that_does_not_prune_has_no_note():
    """The other keys make no difference."""
    assert list(prune_notes(read_settings({"epochs": 2}))) == []


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ({"epochs": 100}, None),
        ({"epochs": 36}, None),
        # What is masked after the last epoch trains no step.
        ({"epochs": 35}, 35),
        ({"epochs": 20}, 35),
        ({"epochs": 100, "stop": {"epochs": 20}}, 35),
        ({"epochs": 6, "pruning_phase_transition_epoch": 2, "pruning_checkpoint_interval": 3}, None),
        ({"epochs": 6, "pruning_phase_transition_epoch": 5}, 10),
        ({"epochs": 400, "pruning_phase_transition_epoch": 120}, 125),
    ],
)
def test_a_run_that_ends_before_its_first_masks_says_so(keys, first):
    """With the epoch after which they are due, and the keys that decide it."""
    found = notes(**keys)

    assert len(found) == (first is not None)
    assert first is None or f"is due after epoch {first} (pruning_phase_transition_epoch: " in found[0]


def test_keys_that_contradict_pruning_are_said():
    """Nothing may change the model, or a compiled model cannot become smaller."""
    assert "enable_morphogenetic is false" in notes(enable_morphogenetic=False)[0]
    (compiled,) = notes(compile=True, prune={"enabled": True, "compact_every": 2})
    assert "prune.compact_every has no effect with compile: true" in compiled
    assert notes(compile=True) == []


@pytest.mark.parametrize("interval", [2, 3, 5])
@pytest.mark.parametrize("transition", [0, 1, 10, 30])
def test_the_first_masks_are_those_of_the_schedule_itself(interval, transition):
    """The first epoch after which the schedule names a cycle that prunes."""
    plan = PrunePlan(transition_epoch=transition, interval=interval)
    phases = {epoch: phase_at(plan, epoch) for epoch in range(1, 100)}
    due = [
        one for one, phase in phases.items() if phase is PruningPhase.ACTIVE_PRUNING and is_cycle_due(plan, one, phase)
    ]

    assert first_masks(plan) == due[0]
