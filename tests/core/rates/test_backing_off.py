"""`rollback.rate_factor`: after a rollback by the detector an ordinary order multiplies every rate by the factor."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.health.test_detection_rules import tell
from tests.core.rated import GROUPS, RatedWorld
from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import find, until
from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding
from tolariad.core.calc.learning_rate.schedule import LRPolicy

# A frozen group has no rate to be backed off.
MOVING = sum(group.schedule.policy is not LRPolicy.FROZEN for group in GROUPS)


def gone_back(acts=None, who="", **policy):
    """A world whose detector found a divergence after step 6; `who` dies so many acts later."""
    world = until(RatedWorld(0, **policy), 6)
    tell(world, Finding.DIVERGENCE)
    for _ in range(acts or 0):
        world.tick()
    if who:
        world.crash_trainer() if who == "trainer" else world.restart_daemon()
    world.run()
    return world


def rates(world, branch):
    """The first group's rate by step of the living branch."""
    return {e.step: e.lr for e in find(world, m.StepCompleted) if e.branch == branch}


def test_every_group_is_ordered_a_share_of_its_rate_once_training_stands_at_the_target():
    """Said, ordered, acted; and the run completes on one line with its rates agreed."""
    calm, world = gone_back(), gone_back(rate_factor=0.5)
    (backed,) = find(world, m.RatesBackedOff)
    ordered, changed = find(world, order_events.given(m.SetRate)), find(world, order_events.acted(m.SetRate))
    plain, slower = rates(calm, 1), rates(world, 1)

    assert find(calm, m.RatesBackedOff) == []
    assert (backed.factor, backed.groups) == (0.5, MOVING)
    assert len(ordered) == len(changed) == backed.groups
    assert all(one.actor.program == "tolariad" for one in ordered)
    assert find(world, m.RollbackBegun)[0].rate_factor == 0.5
    assert slower[min(slower)] == pytest.approx(plain[min(plain)] / 2)
    assert not find(world, m.LrViolationDetected)
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("acts", range(7))
@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_whoever_dies_amid_it_rates_are_backed_off_exactly_once(acts, who):
    """At every point of the rollback, and after it."""
    world = gone_back(acts, who, rate_factor=0.5)

    assert len(find(world, m.RatesBackedOff)) == 1
    numbers = [one.number for one in find(world, order_events.acted(m.SetRate))]
    assert numbers == list(range(1, MOVING + 1))
    assert not find(world, m.LrViolationDetected)
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_an_operators_rollback_leaves_the_rates_alone():
    """An operator who orders a rollback can order rates, too."""
    world = until(RatedWorld(0, rate_factor=0.5), 6)
    world.command(m.Rollback(epoch=1))
    world.run()

    assert find(world, m.RatesBackedOff) == []
    assert find(world, order_events.given(m.SetRate)) == []
