"""What the daemon spends is measured now and then, told once, and held against its budgets."""

from __future__ import annotations

from itertools import count

import pytest

from tests.core.test_overruns import Told
from tolariad.core.control.words import NoteAdded
from tolariad.core.decide import decide
from tolariad.core.health.budget_words import BudgetExceeded
from tolariad.core.health.stability_words import ConservativeModeEntered
from tolariad.core.inputs import BudgetsTold, Now
from tolariad.core.settings.model import Integration, Settings
from tolariad.core.state import RunState
from tolariad.daemon.spending import SAMPLED, Spending
from tolariad.kernel import Published

EVENTS = tuple((seq, NoteAdded(text="hm")) for seq in range(1, 5))


def turn(write_ms: float = 0.0, events=EVENTS) -> Published:
    return Published(RunState(), events, (), None, int(write_ms * 1e6))


def taken(spending: Spending) -> dict[str, tuple[int, int, float]]:
    return {one.budget: (one.count, one.breaches, one.worst) for one in spending.taken()}


def test_one_turn_in_so_many_is_measured_and_every_one_is_told():
    """The first of each lot: its write, what telling took, that by message, and how many messages wait."""
    ticks, told = count(0.0, 0.008), []
    spending = Spending(Settings(), clock=lambda: next(ticks))
    for number in range(2 * SAMPLED):
        spending.tell(turn(12.0 if number < SAMPLED else 3.0), lambda: told.append(1), lambda: 7)

    assert len(told) == 2 * SAMPLED
    assert taken(spending) == {
        "journal_append": (2, 1, pytest.approx(12.0)),
        "telemetry_batch": (2, 2, pytest.approx(8.0)),
        "telemetry_put": (2, 2, pytest.approx(2.0)),
        "telemetry_queue": (2, 0, 7.0),
    }
    assert spending.taken() == ()


def test_a_limit_is_the_runs_own_and_a_turn_without_events_tells_of_none():
    """Six messages wait where five may."""
    spending = Spending(Settings(integration=Integration(oona_backpressure_limit=5)))
    spending.tell(turn(events=()), lambda: None, lambda: 6)

    assert taken(spending) == {"telemetry_queue": (1, 1, 6.0)}


def test_a_slow_journal_or_telemetry_is_an_event_and_makes_no_run_careful():
    """However often: what tells of a run must not change it."""
    told = Told()
    spending = Spending(Settings(), clock=count(0.0, 1.0).__next__)
    for _ in range(9):
        for _ in range(SAMPLED):
            spending.tell(turn(50.0), lambda: None, lambda: 0)
        told.record(*decide(told.state, BudgetsTold(tallies=spending.taken()), Now(wall=0, mono=told.mono)).events)
    exceeded = {one.budget for one in told.events if isinstance(one, BudgetExceeded)}

    assert exceeded == {"journal_append", "telemetry_batch", "telemetry_put"}
    assert told.state.overruns.breakers == {}
    assert not [one for one in told.events if isinstance(one, ConservativeModeEntered)]
    assert told.state.overruns.meters["journal_append"].count == 9
