"""A share of memory that is exceeded is an event, and an order to the trainer, until it is kept again."""

from __future__ import annotations

from tests.core.facts import environment
from tests.core.health.test_budgets import Told, tally
from tolariad.core import messages as m
from tolariad.core.engine import Decided
from tolariad.core.rules.budget import tell_pressure_again
from tolariad.core.rules.table.decide import decide


def shares(**percent: float) -> list[m.BudgetHistogram]:
    """Return the figures of memory that an epoch's end reports."""
    return [tally(f"memory_{name}", value) for name, value in percent.items()]


def pressure(decided: Decided) -> list[tuple[str, object]]:
    """Return the events and orders that memory caused."""
    events = [(type(one).__name__, getattr(one, "budget", None)) for one in decided.events]
    orders = [("order", one.pressed) for one in decided.effects if isinstance(one, m.SetMemoryPressure)]
    return [one for one in events if one[0].startswith("Memory")] + orders


def test_a_share_of_memory_that_is_exceeded_is_told_once_and_ends_when_all_are_kept():
    """The trainer hears of both; a new trainer hears of what stands; times that are measured alone change nothing."""
    told = Told()
    told.record(m.TrainerStarted(incarnation=1, pid=9, start_ticks=1, boot_id="b"))
    context = m.ExecutionContextRecorded(
        incarnation=1, environment=environment(), hash="aa", parameters=10, steps_per_epoch=4
    )
    told.record(context)
    found = []
    for tallies in (
        shares(model=30.0, checkpoints=2.0),
        shares(model=30.0, checkpoints=9.0),
        shares(model=50.0, checkpoints=9.0),
        [tally("lr_step", 0.1)],
        shares(model=30.0, checkpoints=2.0),
    ):
        decided = decided_of(told, tallies)
        told.record(*decided.events)
        found.append(pressure(decided))

    assert found == [
        [],
        [("MemoryPressed", "memory_checkpoints"), ("order", True)],
        [],
        [],
        [("MemoryRelieved", None), ("order", False)],
    ]
    assert told.state.overruns.memory is None


def test_without_acting_on_budgets_memory_that_is_short_is_only_shown():
    """`budgets.act: false`."""
    told = Told(budgets_act=False)
    assert pressure(decided_of(told, shares(model=50.0))) == []


def decided_of(told: Told, tallies: list[m.BudgetHistogram]) -> Decided:
    """Return what follows if the epoch's end reports these."""
    number = told.state.progress.epoch_finished + 1
    report = m.EpochReport(epoch=number, step=told.state.progress.step, tallies=tuple(tallies))
    return decide(told.state, m.ReportReceived(incarnation=1, report=report), m.Now(wall=told.mono, mono=told.mono))


def test_a_new_trainer_hears_of_pressure_that_stands():
    """After its order to train, with the slots that stay; without a pressure it hears nothing."""
    told = Told()
    assert tell_pressure_again(told.state, None, None) is None
    told.record(m.MemoryPressed(budget="memory_model", percent=50.0, limit=40.0))
    assert tell_pressure_again(told.state, None, None).effects == (m.SetMemoryPressure(pressed=True, slots=(0, 1)),)
