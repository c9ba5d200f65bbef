"""After which epochs a checkpoint is due: those of the interval, and those that a cycle of pruning begins after."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, until
from tolariad.core import queries as q
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.plan import PrunePlan

HOUR = 3_600_000_000_000
PLAN = PrunePlan(transition_epoch=12, last_epoch=30, interval=5)


def due(plan, override=None, gap_s=30.0):
    """The epochs of 40 after which a checkpoint is due, every 20 by the interval."""
    state = until(World(0, checkpoint_every_epochs=20, checkpoint_interval_s=1e9), 2).state
    state = replace(
        state,
        run=replace(state.run, policy=replace(state.run.policy, prune=plan, checkpoint_gap_s=gap_s)),
        pruning=replace(state.pruning, override=override),
    )
    return {epoch for epoch in range(1, 41) if q.due_after_epoch(state, epoch, state.checkpoints.clock_mono + HOUR)}


@pytest.mark.parametrize(
    ("plan", "override", "epochs"),
    [
        (None, None, {20, 40}),
        (PLAN, None, {15, 20, 25, 30, 40}),
        (PLAN, PruningPhase.DISABLED, {20, 40}),
        (PLAN, PruningPhase.VALIDATION_ONLY, {20, 40}),
    ],
)
def test_a_cycle_that_prunes_gets_its_checkpoint(plan, override, epochs):
    """At multiples of `pruning_checkpoint_interval` while the phase is ACTIVE_PRUNING; cycles that analyse add none."""
    assert due(plan, override) == epochs


def test_no_cycle_brings_two_checkpoints_within_the_gap():
    """`checkpoint.min_gap_s` holds for pruning too."""
    assert due(PLAN, gap_s=1e9) == set()
