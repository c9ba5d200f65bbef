"""Orders of a function's table: checked before they are recorded, repeated in re-runs from the journal alone."""

from __future__ import annotations

import base64
import zlib

import pytest

from tests import order_events
from tests.core import rated
from tests.core.rated import GROUPS, RatedWorld
from tests.core.simulate import find, tick_until, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.calc.learning_rate.tabulated import Tabulated, packed
from tolariad.core.decision import Accepted
from tolariad.core.rules import rates
from tolariad.core.state.run_state import capture, read_capture


def table(factors=(1.0, 0.9, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.2, 0.1), **other):
    given = {"source": "/a/b.py:f", "hash": "ab", "steps": len(factors), "packed": packed(factors)}
    return Tabulated(**{**given, **other})


def test_a_function_that_is_ordered_acts_at_the_boundary_and_scales_to_its_value():
    """The group had another policy. The events hold the table, and every step has the rates that it leads to."""
    world = until(RatedWorld(0), 4)
    assert isinstance(world.lr_set("head", 0.01, function=table()), Accepted)
    world.run()

    (changed,) = find(world, order_events.acted(m.SetRate))
    assert (changed.order.policy, changed.order.value, changed.order.function) == (LRPolicy.FUNCTION, 0.01, table())
    assert world.state.rates.group("head").policy_name == "b.py:f"
    assert find(world, m.LrViolationDetected) == []
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_rerun_repeats_the_table_of_the_journal(seed):
    """The trainer dies after the order has acted; the next one gets the table with the order, and imports nothing."""
    world = until(RatedWorld(seed), 3)
    world.lr_set("head", 0.01, function=table())
    until(world, 5)
    world.crash_trainer()
    world.run()

    assert len(find(world, order_events.acted(m.SetRate))) == 1
    assert world.state.rates.group("head").function == table()
    assert find(world, m.LrViolationDetected) == []
    assert world.state.run.phase is st.Phase.COMPLETED


def by_another_zlib(text: str) -> str:
    """Return the text of the same values, as another version of zlib might pack them: here without compression."""
    body = base64.b64decode(text)
    return base64.b64encode(body[:1] + zlib.compress(zlib.decompress(body[1:]), 0)).decode()


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ({}, True),
        ({"hash": "cd"}, False),
        ({"factors": (1.0, 0.5) * 8}, False),
        ({"packed": by_another_zlib(table().packed)}, False),
    ],
)
def test_other_values_of_an_unchanged_file_are_refused_at_a_resume(monkeypatch, other, is_refused):
    """Something that it imports has changed. Another file is accepted by its hash; another horizon is another table.

    The same values in another text are no other values: the machine's zlib may be another one.
    """

    def built_with(table):
        schedule = Schedule(policy=LRPolicy.FUNCTION, base_lr=0.1, total_steps=12, function=table)
        monkeypatch.setattr(rated, "GROUPS", (Group("body", schedule), *GROUPS[1:]))

    built_with(table())
    world = until(RatedWorld(0), 4)
    built_with(table(**{"factors": (1.0, 0.5) * 6, **other}))
    world.restart_daemon()
    tick_until(world, lambda: world.exit or len(find(world, m.LrGroupsRegistered)) > 1, "the end of the start")

    assert (world.exit == 78) is is_refused
    assert ("the rate function b.py:f gives other values" in world.state.run.why) is is_refused
    assert world.state.progress.step == 4


def test_a_capture_of_the_state_holds_the_table():
    """A reader that begins at a capture computes the same rates."""
    world = until(RatedWorld(0), 3)
    world.lr_set("head", 0.01, function=table())
    world.run()

    assert read_capture(capture(world.state)) == world.state


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (table([1.0] * 11), "has 11 steps, and the schedule has 12"),
        (table([1.0] * 11 + [-1.0]), "at step 11 it gives -1.0"),
        (table(packed="rubbish"), "has 0 steps"),
        (table([0.001] * 11 + [1.0]), "rises to"),
    ],
)
def test_a_table_that_is_no_schedule_is_refused(wrong, why):
    """A client makes tables, so the kernel checks each before it is recorded."""
    world = until(RatedWorld(0), 3)
    answer = world.lr_set("head", 0.02, function=wrong)

    assert isinstance(answer, m.Refusal)
    assert why in answer.why
    assert find(world, order_events.given(m.SetRate)) == []


def test_tables_of_all_groups_together_have_a_limit(monkeypatch):
    """They are in every capture of the state. A table that an order replaces does not count."""
    world = until(RatedWorld(0), 2)
    monkeypatch.setattr(rates, "PACKED_MAX", len(table().packed))
    assert isinstance(world.lr_set("head", 0.01, function=table()), Accepted)
    until(world, 5)

    refused = world.lr_set("body", 0.05, function=table())
    assert isinstance(refused, m.Refusal)
    assert "which is the limit" in refused.why
    assert isinstance(world.lr_set("head", 0.01, function=table()), Accepted)


def test_a_policy_without_its_table_is_refused():
    """`function` is no name of a policy: there is nothing that it would compute."""
    answer = until(RatedWorld(0), 3).lr_set("head", 0.01, LRPolicy.FUNCTION)

    assert isinstance(answer, m.Refusal)
    assert "comes with its table" in answer.why
