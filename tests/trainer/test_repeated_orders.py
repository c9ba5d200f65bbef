"""Rate orders in the journal, in a trainer that restarts: each acts once, at its step, before any new order."""

from __future__ import annotations

import pytest

from tolariad.core import messages as m

STEPS = 23  # of an epoch of the built-in task


@pytest.fixture
def after_an_end(daemon_in, configured):
    """A trainer that restarts before the end of epoch 1; the journal holds that end and an order after it."""
    daemon = daemon_in("run", 2, checkpoint_every_epoch=False, exit_after_step=STEPS)
    configuration = configured("digits", epochs=2)
    daemon.train_here(configuration)
    assert daemon.last_step == STEPS
    group = daemon.reports[0].groups[0].name
    daemon.epoch_finished, daemon.end_after_step = 1, STEPS + 2
    repeated = m.SetRate(group=group, value=0.002, curve=0.003, cause=50)
    daemon.script_orders = (m.ScriptOrder(STEPS + 1, 1, 1, repeated),)
    daemon.waiting = (m.SetRate(group=group, value=0.001, policy=None, cause=99),)
    daemon.reports.clear()
    return daemon, configuration


def kinds(daemon) -> list[str]:
    return [type(report).__name__ for report in daemon.reports]


@pytest.mark.parametrize("kept", [0, 1])
def test_an_order_after_an_epoch_s_end_acts_again_before_one_that_waits(after_an_end, kept):
    """Also if the end is reported again, because its checkpoint is pending, and orders arrive in the meantime."""
    daemon, configuration = after_an_end
    daemon.epoch_to_keep = kept
    trained = daemon.train_here(configuration)

    (done,) = daemon.of(m.BoundaryOrderReport)
    assert (done.order, done.applied_before_step, done.refused) == (99, STEPS + 1, "")
    assert trained.acted.count == 2
    assert daemon.steps[STEPS + 1].lr == 0.001
    assert [report.epoch for report in daemon.of(m.EpochReport)][: bool(kept)] == [1] * kept


def test_where_rates_stand_is_told_when_everything_was_repeated_and_before_anything_new(after_an_end):
    """After a rollback whose target was refused, the report contains the order after the epoch's end."""
    daemon, configuration = after_an_end
    daemon.tell_rates = True
    daemon.train_here(configuration)

    (told,) = daemon.of(m.RatesStandingReport)
    assert (told.rates.orders, told.rates.losses) == (1, 0)
    assert told.rates.groups[0].scale.value == 0.002
    order = kinds(daemon)
    assert order.index("RerunReport") < order.index("RatesStandingReport") < order.index("BoundaryOrderReport")


def test_nobody_is_told_who_did_not_ask(after_an_end):
    """An ordinary start reports its rates once, in its first report."""
    daemon, configuration = after_an_end
    daemon.train_here(configuration)
    assert "RatesStandingReport" not in kinds(daemon)


def test_a_checkpoint_says_how_many_orders_it_holds(after_an_end):
    """A checkpoint before the orders counts none, one after them counts both."""
    daemon, configuration = after_an_end
    daemon.train_here(configuration)
    before, behind = daemon.committed
    assert (before.step, before.orders, behind.orders) == (0, 0, 2)
    assert behind.step >= STEPS + 2  # as soon as the word to end is heard
    assert all(isinstance(one, m.CheckpointWrittenReport) for one in daemon.committed)
