"""A fault that comes again after two rollbacks: the run continues in conservative mode, or halts.

The tests also show what resets the count.
"""

from __future__ import annotations

import pytest

from tests.core.health.test_detection_rules import tell, until_back
from tests.core.simulate import World, find, tick_until, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict


def shift(value: float = float("nan"), finding: Finding = Finding.SUSTAINED) -> Verdict:
    """A value that is not finite. What follows from others is in tests/core/insurance."""
    return Verdict(finding, Signal.LOSS, value, 2.0, 4.0, explosion=30.0)


def course(world: World, at: int, told: Verdict, times: int = 20) -> World:
    """Let the trainer find the same at step `at`, again and again, until the run halts or passes the step."""
    for _ in range(times):
        until(world, at - 1)
        tell(world, told)
        if world.state.rollbacks.open is None:
            break
        until_back(world)
    return world


@pytest.mark.parametrize(
    "told",
    [
        shift(),
        shift(finding=Finding.EXPLOSION),
        shift(finding=Finding.NON_FINITE, value=float("inf")),
    ],
)
def test_what_is_lost_halts_after_two_rollbacks_and_keeps_its_checkpoints(told):
    """Not finite: an operator decides how far to go back."""
    world = course(World(0), 7, told)

    assert [one.step for one in find(world, m.RolledBack)] == [4, 4]
    assert world.state.run.phase is st.Phase.FROZEN
    assert [one.step for one in world.state.checkpoints.catalogue if one.is_target] == [0, 4]


def test_an_operators_rollback_begins_the_count_anew():
    """He may have changed something: what did not help before may help now."""
    world = course(World(0), 7, shift(finding=Finding.EXPLOSION), times=2)
    until(world, 6)
    world.command(m.Rollback(epoch=1))
    until_back(world)
    world = course(world, 7, shift(finding=Finding.EXPLOSION))

    assert len(find(world, m.RollbackRequested)) == 1
    assert len(find(world, m.RolledBack)) == 5
    assert world.state.run.phase is st.Phase.FROZEN


def test_where_no_target_can_be_used_the_run_halts():
    """All checkpoints are damaged, and it cannot go on from here."""
    world = until(World(0), 7)
    world.broken.update(one.id for one in world.state.checkpoints.catalogue)
    tell(world, shift())
    until_back(world)

    assert len(find(world, m.RollbackAborted)) == 1
    assert world.state.run.phase is st.Phase.FROZEN


def test_an_operator_who_lets_a_halted_run_go_on_meets_the_same_halt_if_it_is_not_finite_again():
    """Only values that are not finite halt it there once more: an update with them would destroy the model."""
    world = course(World(0), 7, shift())
    assert world.state.run.phase is st.Phase.FROZEN
    at = world.state.progress.step
    tick_until(world, lambda: not world.state.trainer.alive, "its trainer is gone")
    world.command(m.Resume())
    tick_until(world, lambda: world.state.progress.step > at, "it trains")
    tell(world, shift(value=9.0))
    assert world.state.run.phase is st.Phase.RUNNING
    tell(world, shift())

    assert len(find(world, m.RunFrozen)) == 2


@pytest.mark.parametrize("finding", [Finding.SUSTAINED, Finding.NON_FINITE])
def test_what_is_found_a_step_late_is_counted_alike(finding):
    """As on a GPU without `detect.sync`: nobody waits for an answer, so none is sent."""
    world, orders = World(0), []
    for _ in range(3):
        until(world, 6)
        orders += tell(world, shift(finding=finding), late=True)
        until_back(world)

    assert [one.step for one in find(world, m.RolledBack)] == [4, 4]
    assert not [one for one in orders if isinstance(one, m.GoOn)]
    assert world.state.run.phase is st.Phase.FROZEN
