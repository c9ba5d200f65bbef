"""When an epoch is healthy enough to leave conservative mode, and which checkpoints the mode delays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.health.test_budgets import Told, entered, exceeded, tally
from tests.core.simulate import World, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.state.health import _emergency, _entered, _epoch_finished, _epoch_started

AT = m.Cause(1, 1)
HOUR = 3600 * 10**9
EVERY = set(range(1, 11))


def finished(epoch: int) -> m.EpochFinished:
    return m.EpochFinished(epoch=epoch, step=epoch, steps=4, train_loss=1.0, seconds=1.0)


def test_an_epoch_with_an_emergency_is_not_healthy_and_one_that_begins_after_it_is():
    """The count starts again; what was raised before an epoch's very start says nothing of it."""
    raised = m.EmergencyRaised(level=m.Level.SEVERE, why="loss")
    two = st.Stability(since=1, healthy_epochs=2)
    amid = _epoch_finished(_emergency(two, raised, AT), finished(3), AT)
    anew = _epoch_finished(_epoch_started(_emergency(two, raised, AT), m.EpochStarted(epoch=2), AT), finished(2), AT)

    assert (_emergency(two, raised, AT).healthy_epochs, amid.healthy_epochs, anew.healthy_epochs) == (0, 0, 1)
    assert _epoch_finished(amid, finished(4), AT).healthy_epochs == 1
    assert amid.breaker == two.breaker, "an emergency is no violation of rates"


def test_what_was_healthy_before_the_mode_counts_for_nothing():
    """The mode ends after three healthy epochs since it began; earlier ones do not count."""
    before = st.Stability(healthy_epochs=7)
    assert _entered(before, m.ConservativeModeEntered(why="loss"), AT).healthy_epochs == 0


def test_a_run_with_an_emergency_in_every_epoch_stays_careful_whatever_the_time():
    """A SEVERE one, then a lesser one in each epoch, with hours between them; three epochs in health end it."""
    told, left = Told(), []
    told.record(m.EmergencyRaised(level=m.Level.SEVERE, why="loss"), m.ConservativeModeEntered(why="loss"))
    for epoch in range(1, 11):
        if epoch < 8:
            told.record(m.EmergencyRaised(level=m.Level.MINOR, why="slow"))
        left += [(epoch, e) for e in told.epoch(later_s=3600.0) if isinstance(e, m.ConservativeModeLeft)]

    assert [(epoch, e.healthy_epochs) for epoch, e in left] == [(10, 3)]


@pytest.mark.parametrize(("threshold", "enters_at"), [(1, 1), (2, 2), (3, 3), (5, 5)])
def test_the_threshold_of_rate_violations_decides_when_the_mode_begins(threshold, enters_at):
    """`learning_rate.circuit_breaker_threshold` violations in a row, also if that is more than three."""
    told, entered = Told(lr_failures=threshold), []
    for number in range(1, enters_at + 1):
        report = m.Told(event=m.LrViolationDetected(step=number, group="body", what="it was changed"))
        entered += [number for e in told.report(report) if isinstance(e, m.ConservativeModeEntered)]

    assert entered == [enters_at]


def test_violations_with_healthy_epochs_between_them_add_up_to_the_threshold():
    """They open no breaker, which counts failures in a row; four are too few for a threshold of five."""
    told, entered = Told(lr_failures=5), []
    for number in range(1, 6):
        report = m.Told(event=m.LrViolationDetected(step=number, group="body", what="it was changed"))
        entered += [e.why for e in told.report(report) if isinstance(e, m.ConservativeModeEntered)]
        assert bool(entered) == (number == 5)
        told.epoch()
        told.epoch()

    assert entered == ["5 learning-rate violations"]


@pytest.mark.parametrize(
    ("every", "normally", "careful"),
    [(10, {10}, {5, 10}), (3, {3, 6, 9}, set(range(1, 11))), (1,) + (set(range(1, 11)),) * 2],
)
def test_in_conservative_mode_checkpoints_come_twice_as_often_in_epochs_too(every, normally, careful):
    """Half the epochs between them, one at least; by time it is `test_rollback`'s to show."""
    world = until(World(0, checkpoint_every_epochs=every, checkpoint_interval_s=1e9), 2)
    mono = world.state.checkpoints.clock_mono + HOUR
    on = replace(world.state, stability=replace(world.state.stability, since=1))

    assert {epoch for epoch in range(1, 11) if q.due_after_epoch(world.state, epoch, mono)} == normally
    assert {epoch for epoch in range(1, 11) if q.due_after_epoch(on, epoch, mono)} == careful
    gap = replace(on, run=replace(on.run, policy=replace(on.run.policy, checkpoint_gap_s=1e9)))
    gap = replace(gap, checkpoints=replace(gap.checkpoints, seconds=1e9))
    assert not any(q.due_after_epoch(gap, epoch, mono) for epoch in range(1, 11)), "never two within the gap"


SLOW = 30.0  # ms: over the 18 of an epoch's boundary, and within twice as much


def boundary(told, ms):
    """The events of an epoch's end that reports this boundary."""
    return told.epoch(tally("epoch_boundary", ms))


def test_three_slow_boundaries_in_a_row_begin_the_mode_and_two_do_not():
    """One that is quick enough begins the count anew. In the mode no seed germinates."""
    told = Told()
    for ms in (SLOW, SLOW, 17.0, SLOW, SLOW):
        assert not entered(boundary(told, ms))
    assert entered(boundary(told, SLOW)) == ["3 epoch boundaries in a row over their budget"]
    told.record(m.SeedSlotsRegistered(slots=(m.SlotFound("a"),), blueprints=("conv",)))
    refused = q.move_seed(told.state, "a", Stage.GERMINATED, "conv")
    assert "conservative mode and starts nothing new: 3 epoch boundaries" in refused.why


def test_in_the_mode_soft_times_have_twice_their_limit():
    """Every soft budget of time but the strategy's deadline, and no other one. After the mode they are the table's."""
    told = Told()
    normal = {one: told.state.overruns.limit_of(one) for one in BUDGETS}
    for _ in range(3):
        boundary(told, SLOW)
    assert told.state.stability.conservative
    doubled = {name for name, limit in normal.items() if told.state.overruns.limit_of(name) == 2 * limit}
    assert {name for name, limit in normal.items() if told.state.overruns.limit_of(name) != limit} == doubled
    soft = {name for name, one in BUDGETS.items() if one.kind == "soft" and one.unit in ("us", "ms", "s")}
    assert doubled == soft - {"strategy_deadline"}

    assert not exceeded(boundary(told, SLOW))
    assert told.state.overruns.slow_boundaries == 0
    found = told.epoch(tally("epoch_boundary", SLOW, 40.0, 50.0))
    (over,) = [one for one in found if isinstance(one, m.BudgetExceeded)]
    assert (over.value, over.limit, over.times) == (50.0, 36.0, 2)
    for _ in range(4):
        told.epoch(tally("epoch_boundary", 1.0), later_s=3600.0)
    assert not told.state.stability.conservative
    assert {name: told.state.overruns.limit_of(name) for name in BUDGETS} == normal


def test_a_mode_that_an_older_version_began_changes_no_limit():
    """Its event does not say so: the fold of an old journal stays what it was."""
    told = Told()
    told.record(m.ConservativeModeEntered(why="loss"))
    assert told.state.overruns.limit_of("epoch_boundary") == 18.0
