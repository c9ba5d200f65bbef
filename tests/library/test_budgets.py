"""A run measures itself: the measurements for its budgets are in its journal."""

from __future__ import annotations

from journal import Reader
from tests.library.small import loaders, made, network
from tests.recorded import events_of, of
from tolariad.control.tables import budget_table
from tolariad.core import messages as m
from tolariad.forensics.moment import state_at
from tolariad.telemetry.histograms import BudgetHistograms

EPOCHS, STEPS_PER_EPOCH = 9, 8


def train(run_dir, *, act=True, **config):
    assert (
        made(run_dir, budgets={"act": act}, **config).train(network(), *loaders(validated=False), EPOCHS).phase
        == "completed"
    )
    with Reader(run_dir / "journal") as reader:
        state = state_at(reader).state
    events = events_of(run_dir)
    histograms = BudgetHistograms()
    for event in events:
        histograms.add(event)
    return state, events, histograms.by_budget


def test_a_run_tells_what_its_boundaries_rates_and_checkpoints_took(tmp_path):
    """Boundaries of all epochs, rates now and then, and after 53 steps what tolariad holds; each once."""
    state, events, histograms = train(tmp_path / "run")
    rows = {row.name: row for row in budget_table(state, histograms).budgets}

    assert rows["epoch_boundary"].count == EPOCHS
    assert rows["lr_step"].count == rows["lr_integrity"].count == len(range(0, EPOCHS * STEPS_PER_EPOCH, 64))
    assert rows["memory_overhead"].count == 3
    # A measurement has fifty timed steps. How many of the seventy-two are timed depends on how long checkpoints take.
    assert rows["training_degradation"].count <= 1
    assert rows["checkpoint"].count >= 2
    assert rows["checkpoint"].breaches == 0
    assert 0 < rows["epoch_boundary"].p50 <= rows["epoch_boundary"].p99
    # Beside these the recorder tells what it spends: once a minute, and at the end.
    told = [
        one for one in of(events, m.BudgetsMeasured) if "journal_append" not in {tally.budget for tally in one.tallies}
    ]
    assert len(told) == EPOCHS + 1


def test_boundaries_that_are_all_too_slow_make_the_run_careful_and_change_nothing_else(tmp_path):
    """With a limit that nothing meets: conservative mode, no rollback, and the parameters of a run that has time."""
    state, events, _ = train(tmp_path / "slow", performance={"epoch_boundary_ms": 1e-6})
    calm, _, _ = train(tmp_path / "calm", performance={"epoch_boundary_ms": 1e6})
    recorded, _, histograms = train(tmp_path / "recorded", performance={"epoch_boundary_ms": 1e-6}, act=False)

    assert sum(isinstance(event, m.BudgetExceeded) for event in events) >= EPOCHS
    assert state.stability.conservative
    assert "epoch boundaries in a row" in state.stability.why
    assert not any(isinstance(event, m.RollbackBegun) for event in events)
    assert not calm.stability.conservative
    assert not recorded.stability.conservative
    assert histograms["epoch_boundary"].breaches == EPOCHS
    assert state.progress.digest == calm.progress.digest == recorded.progress.digest
