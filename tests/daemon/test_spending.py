"""The daemon's own work is sampled, reported once, and compared with its budgets."""

from __future__ import annotations

import pytest

from tests.core.health.test_budgets import Told
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState
from tolariad.daemon.spending import SAMPLED, Spending
from tolariad.kernel import Published

EVENTS = tuple((seq, m.NoteAdded(text="hm")) for seq in range(1, 5))


def turn(write_ms: float = 0.0, events=EVENTS) -> Published:
    return Published(RunState(), events, (), None, int(write_ms * 1e6))


def taken(spending: Spending) -> dict[str, tuple[int, int, float]]:
    return {one.budget: (one.count, one.breaches, one.worst) for one in spending.taken()}


def test_one_turn_in_so_many_is_measured():
    """The first turn of each group is measured, if it wrote anything; a measurement is returned once."""
    spending = Spending(Settings())
    for number in range(3 * SAMPLED):
        spending.tell(turn((12.0, 3.0, 0.0)[number // SAMPLED]))

    assert taken(spending) == {"journal_append": (2, 1, pytest.approx(12.0))}
    assert spending.taken() == ()


def test_a_slow_journal_is_an_event_and_makes_no_run_careful():
    """However often they are read: the report must not change the run."""
    told = Told()
    spending = Spending(Settings())
    for _ in range(9):
        for _ in range(SAMPLED):
            spending.tell(turn(50.0))
        told.record(
            *decide(told.state, m.BudgetsReported(tallies=spending.taken()), m.Now(wall=0, mono=told.mono)).events
        )
    exceeded = {one.budget for one in told.events if isinstance(one, m.BudgetExceeded)}

    assert exceeded == {"journal_append"}
    assert told.state.overruns.breakers == {}
    assert not [one for one in told.events if isinstance(one, m.ConservativeModeEntered)]
    assert told.by_budget["journal_append"].count == 9
