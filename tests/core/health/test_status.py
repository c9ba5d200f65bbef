"""The order of a checkpoint says how well the run is: its manifest records it."""

from __future__ import annotations

from tests.core.checkpoints.test_promotion import found_at
from tests.core.simulate import World, until
from tolariad.core.checkpoints import rules
from tolariad.core.checkpoints.words import CheckpointReason, HealthStatus
from tolariad.core.health import words as hv
from tolariad.core.health.ask import health_status
from tolariad.core.state import fold


def test_an_order_says_the_health_of_the_run_as_it_stands():
    """Unknown before the first step; healthy; degraded for the watch window after a finding; and healthy again."""
    world = World(0, snapshot_watch=3)
    found = [health_status(world.state)]
    until(world, 4)
    found.append(health_status(world.state))
    found_at(world, 4)
    found.append(health_status(world.state))
    until(world, 7)
    found.append(health_status(world.state))

    assert found == [HealthStatus.UNKNOWN, HealthStatus.HEALTHY, HealthStatus.DEGRADED, HealthStatus.HEALTHY]
    (order,) = rules._begin(world.state, CheckpointReason.ORDERED).effects
    assert order.health is HealthStatus.HEALTHY


def test_the_gravest_reason_decides():
    """Conservative mode is less than an emergency that stands, and CRITICAL is more; one that is cleared is none."""
    state = until(World(0), 4).state
    careful = fold(state, [hv.ConservativeModeEntered(why="loss")])
    found = {level: health_status(fold(careful, [hv.EmergencyRaised(level=level, why="loss")])) for level in hv.Level}
    cleared = fold(state, [hv.EmergencyRaised(level=hv.Level.SEVERE, why="loss"), hv.EmergencyCleared(why="over")])

    assert health_status(careful) is HealthStatus.DEGRADED
    assert found == {
        hv.Level.MINOR: HealthStatus.DEGRADED,
        hv.Level.MAJOR: HealthStatus.UNHEALTHY,
        hv.Level.SEVERE: HealthStatus.UNHEALTHY,
        hv.Level.CRITICAL: HealthStatus.CRITICAL,
    }
    assert health_status(cleared) is HealthStatus.HEALTHY
