"""The order of a checkpoint says how well the run is: its manifest records it."""

from __future__ import annotations

from tests.core.checkpoints.test_promotion import found_at
from tests.core.simulate import World, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.rules import checkpoints
from tolariad.core.state.run_state import fold


def test_an_order_says_the_health_of_the_run_as_it_stands():
    """Unknown before the first step; healthy; degraded for the watch window after a finding; and healthy again."""
    world = World(0, snapshot_watch=3)
    found = [q.health_status(world.state)]
    until(world, 4)
    found.append(q.health_status(world.state))
    found_at(world, 4)
    found.append(q.health_status(world.state))
    until(world, 7)
    found.append(q.health_status(world.state))

    assert found == [m.HealthStatus.UNKNOWN, m.HealthStatus.HEALTHY, m.HealthStatus.DEGRADED, m.HealthStatus.HEALTHY]
    (order,) = checkpoints._begin(world.state, m.CheckpointReason.ORDERED).effects
    assert order.health is m.HealthStatus.HEALTHY


def test_the_gravest_reason_decides():
    """Conservative mode is less than an emergency that stands, and CRITICAL is more; one that is cleared is none."""
    state = until(World(0), 4).state
    careful = fold(state, [m.ConservativeModeEntered(why="loss")])
    found = {level: q.health_status(fold(careful, [m.EmergencyRaised(level=level, why="loss")])) for level in m.Level}
    cleared = fold(state, [m.EmergencyRaised(level=m.Level.SEVERE, why="loss"), m.EmergencyCleared(why="over")])

    assert q.health_status(careful) is m.HealthStatus.DEGRADED
    assert found == {
        m.Level.MINOR: m.HealthStatus.DEGRADED,
        m.Level.MAJOR: m.HealthStatus.UNHEALTHY,
        m.Level.SEVERE: m.HealthStatus.UNHEALTHY,
        m.Level.CRITICAL: m.HealthStatus.CRITICAL,
    }
    assert q.health_status(cleared) is m.HealthStatus.HEALTHY
