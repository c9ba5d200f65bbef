"""The table of budgets that clients get."""

from __future__ import annotations

from tolariad.control.budgets import budget_table
from tolariad.core.checkpoints.words import (
    CheckpointBegun,
    CheckpointCommitted,
    CheckpointDeletionBegun,
    CheckpointReason,
)
from tolariad.core.health.budget_words import BudgetsMeasured, Tally
from tolariad.core.health.budgets import BUDGETS
from tolariad.core.health.histogram import Bin
from tolariad.core.state import RunState, fold


def test_every_budget_is_a_row_measured_or_not():
    """Limit, unit and source are always there; quantiles only if there are measurements."""
    tally = Tally(budget="lr_step", count=3, breaches=1, worst=6.0, counts=(Bin(386, 2), Bin(392, 1)))
    table = budget_table(fold(RunState(), (BudgetsMeasured(epoch=1, tallies=(tally,)),)))
    rows = {row.name: row for row in table.budgets}

    assert list(rows) == list(BUDGETS)
    measured, other = rows["lr_step"], rows["state_assembly"]
    assert (measured.limit, measured.unit, measured.count, measured.breaches) == (5.0, "ms", 3, 1)
    assert 0 < measured.p50 <= measured.p99 <= measured.worst == 6.0
    assert (other.count, other.p50, other.p99, other.worst) == (0, None, None, None)
    assert other.part_of == "epoch_boundary"


def test_a_tally_of_a_name_that_is_no_budget_is_not_kept():
    """A newer trainer may report unknown budgets; the state stays bounded."""
    tally = Tally(budget="dreams", count=1, breaches=0, worst=1.0, counts=(Bin(5, 1),))
    state = fold(RunState(), (BudgetsMeasured(epoch=1, tallies=(tally,)),))

    assert state.overruns.meters == {}


def test_the_storage_of_checkpoints_is_what_they_take_now():
    """The current total counts: two of 60 GB exceed 100; after one is removed it does not."""
    begun = tuple(CheckpointBegun(id=f"c00000{n}", reason=CheckpointReason.EPOCH) for n in (1, 2))
    place = {"step": 1, "epoch": 1, "batch": 0, "manifest": "", "pieces": (), "seconds": 1.0}
    state = fold(RunState(), begun)
    assert storage(state).p50 is None
    state = fold(state, tuple(CheckpointCommitted(id=one.id, size=60 * 10**9, **place) for one in begun))
    assert (storage(state).worst, storage(state).breaches) == (120.0, 1)
    state = fold(state, (CheckpointDeletionBegun(id="c000001", why="the quota", size=60 * 10**9),))
    assert (storage(state).worst, storage(state).count, storage(state).breaches) == (60.0, 1, 0)


def storage(state):
    (row,) = (row for row in budget_table(state).budgets if row.name == "checkpoint_storage")
    return row
