"""The table of budgets that clients get."""

from __future__ import annotations

from tolariad.control.tables import budget_table
from tolariad.core import messages as m
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Bucket
from tolariad.core.state.run_state import RunState, fold
from tolariad.telemetry.histograms import BudgetHistograms


def test_every_budget_that_is_measured_is_a_row():
    """Limit, unit and source always; quantiles only of what was measured; what nothing measures yet is left out."""
    tally = m.BudgetHistogram(budget="lr_step", count=3, breaches=1, worst=6.0, counts=(Bucket(386, 2), Bucket(392, 1)))
    histograms = BudgetHistograms()
    histograms.add(m.BudgetsMeasured(epoch=1, tallies=(tally,)))
    table = budget_table(RunState(), histograms.by_budget)
    rows = {row.name: row for row in table.budgets}

    assert list(rows) == [name for name, budget in BUDGETS.items() if not budget.unmeasured]
    measured, other = rows["lr_step"], rows["fast_prepare"]
    assert (measured.limit, measured.unit, measured.count, measured.breaches) == (5.0, "ms", 3, 1)
    assert 0 < measured.p50 <= measured.p99 <= measured.worst == 6.0
    assert (other.count, other.p50, other.p99, other.worst) == (0, None, None, None)
    assert other.part_of == "fast_rollback"


def test_the_storage_of_checkpoints_is_what_they_take_now():
    """The current total counts: two of 60 GB exceed 100; after one is removed it does not."""
    begun = tuple(m.CheckpointBegun(id=f"c00000{n}", reason=m.CheckpointReason.EPOCH) for n in (1, 2))
    place = {"step": 1, "epoch": 1, "batch": 0, "manifest": "", "pieces": (), "seconds": 1.0}
    state = fold(RunState(), begun)
    assert storage(state).p50 is None
    state = fold(state, tuple(m.CheckpointCommitted(id=one.id, size=60 * 10**9, **place) for one in begun))
    assert (storage(state).worst, storage(state).breaches) == (120.0, 1)
    state = fold(state, (m.CheckpointDeletionBegun(id="c000001", why="the quota", size=60 * 10**9),))
    assert (storage(state).worst, storage(state).count, storage(state).breaches) == (60.0, 1, 0)


def storage(state):
    (row,) = (row for row in budget_table(state, {}).budgets if row.name == "checkpoint_storage")
    return row
