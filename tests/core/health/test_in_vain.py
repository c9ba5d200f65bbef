"""A fault that comes again after two rollbacks: the run continues in conservative mode, or halts.

The tests also show what resets the count.
"""

from __future__ import annotations

import pytest

from tests.core.health.test_detection_rules import tell, until_back
from tests.core.simulate import World, completes, find, tick_until, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict


def shift(value: float = 4.5, finding: Finding = Finding.SUSTAINED) -> Verdict:
    """The loss doubled, far below where it would have exploded."""
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


@pytest.mark.parametrize("finding", [Finding.SUSTAINED, Finding.DIVERGENCE])
def test_what_is_found_again_after_two_rollbacks_goes_on_in_conservative_mode(finding):
    """A curriculum, a target network, another term of the loss: it is in the data, and no rollback takes it away."""
    world = course(World(0), 7, shift(finding=finding))
    found = find(world, m.InstabilityDetected)
    (entered,) = find(world, m.ConservativeModeEntered)

    assert [one.step for one in find(world, m.RolledBack)] == [4, 4]
    assert [(one.level, one.returns, one.goes_on) for one in found] == [
        (m.Level.MAJOR, 0, False),
        (m.Level.MAJOR, 1, False),
        (None, 2, True),
    ]
    assert len(find(world, m.EmergencyRaised)) == 2
    assert entered.why == (
        f"{finding.value}: loss 4.5 at step 7 (usual 2, limit 4); 2 rollbacks did not help; the run goes on"
    )
    assert entered.cause == world.events.index(found[-1]) + 1
    completes(world)


def test_detect_halt_freezes_the_run_where_two_rollbacks_did_not_help():
    """The run halts at the third finding; it abandons no checkpoint for a third attempt."""
    world = course(World(0, detect_halt=True), 7, shift())
    found = find(world, m.InstabilityDetected)[-1]

    assert [one.step for one in find(world, m.RolledBack)] == [4, 4]
    assert (found.level, found.goes_on, found.returns) == (m.Level.MAJOR, False, 2)
    assert find(world, m.EmergencyRaised)[-1].follows is m.Follows.HALT
    assert world.state.run.phase is st.Phase.FROZEN
    assert "2 rollbacks did not help" in world.state.run.why
    assert world.state.progress.step == 6


def test_a_level_that_rises_on_is_followed_up_to_an_explosion():
    """Found again a little later it is still that place; above the first time's ceiling the run is lost, and halts."""
    world = course(World(0), 7, shift())
    until(world, 8)
    orders = tell(world, shift(value=29.0, finding=Finding.DIVERGENCE))
    assert isinstance(orders[-1], m.GoOn)
    until(world, 9)
    tell(world, shift(value=31.0, finding=Finding.DIVERGENCE))

    assert [one.level for one in find(world, m.InstabilityDetected)[2:]] == [None, None, m.Level.MAJOR]
    assert len(find(world, m.RolledBack)) == 2
    assert len(find(world, m.ConservativeModeEntered)) == 1
    assert world.state.run.phase is st.Phase.FROZEN


@pytest.mark.parametrize(
    "told",
    [
        shift(value=float("nan")),
        shift(value=31.0),
        shift(finding=Finding.EXPLOSION),
        shift(finding=Finding.NON_FINITE, value=float("inf")),
    ],
)
def test_what_is_lost_halts_after_two_rollbacks_and_keeps_its_checkpoints(told):
    """Not finite, or exploded: an operator decides how far to go back."""
    world = course(World(0), 7, told)

    assert [one.step for one in find(world, m.RolledBack)] == [4, 4]
    assert world.state.run.phase is st.Phase.FROZEN
    assert [one.step for one in world.state.checkpoints.catalogue if one.is_target] == [0, 4]


def test_a_shift_of_a_version_that_named_no_ceiling_goes_on():
    """Its explosion is 0: nothing shows that the run is lost."""
    world = course(World(0), 7, Verdict(Finding.SUSTAINED, Signal.LOSS, 4.5, 2.0, 4.0))

    assert find(world, m.InstabilityDetected)[-1].goes_on
    assert world.state.run.phase is st.Phase.RUNNING


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


def test_where_no_target_can_be_used_a_shift_goes_on_and_an_explosion_halts():
    """All checkpoints are damaged: the trainer that waits is told to go on, in conservative mode."""
    goes_on, halts = until(World(0), 7), until(World(0), 7)
    for world, finding in ((goes_on, Finding.SUSTAINED), (halts, Finding.EXPLOSION)):
        world.broken.update(one.id for one in world.state.checkpoints.catalogue)
        tell(world, shift(finding=finding))
        until_back(world)

    assert len(find(goes_on, m.RollbackAborted)) == len(find(halts, m.RollbackAborted)) == 1
    assert goes_on.state.stability.why.endswith("the run goes on")
    assert goes_on.state.run.phase is st.Phase.RUNNING
    assert halts.state.run.phase is st.Phase.FROZEN


def test_an_operator_who_lets_a_halted_run_go_on_has_said_that_it_may():
    """Else it would halt at the same place for ever, as soon as it was resumed."""
    world = course(World(0), 7, shift(finding=Finding.EXPLOSION))
    assert world.state.run.phase is st.Phase.FROZEN
    at = world.state.progress.step
    tick_until(world, lambda: not world.state.trainer.alive, "its trainer is gone")
    world.command(m.Resume())
    tick_until(world, lambda: world.state.progress.step > at, "it trains")
    tell(world, shift(finding=Finding.EXPLOSION))

    assert len(find(world, m.RunFrozen)) == 1
    assert find(world, m.InstabilityDetected)[-1].level is None
    completes(world)


@pytest.mark.parametrize(
    ("finding", "phase"), [(Finding.SUSTAINED, st.Phase.RUNNING), (Finding.EXPLOSION, st.Phase.FROZEN)]
)
def test_what_is_found_a_step_late_is_counted_alike(finding, phase):
    """As on a GPU without `detect.sync`: nobody waits for an answer, so none is sent."""
    world, orders = World(0), []
    for _ in range(3):
        until(world, 6)
        orders += tell(world, shift(finding=finding), late=True)
        until_back(world)

    assert [one.step for one in find(world, m.RolledBack)] == [4, 4]
    assert not [one for one in orders if isinstance(one, m.GoOn)]
    assert find(world, m.InstabilityDetected)[-1].goes_on is (phase is st.Phase.RUNNING)
    assert world.state.run.phase is phase
