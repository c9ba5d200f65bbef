"""How long the next trainer waits after one that died: `state.trainer.backoff_s`, through `decide`."""

from __future__ import annotations

from tests.core.simulate import World, find, until
from tolariad.core import messages as m


def test_trainers_that_make_a_step_and_die_do_not_follow_each_other_without_a_pause():
    """Only the first death within ten seconds is followed at once. A clock of another boot is not compared."""
    world = until(World(0), 1)
    for pause_s in (0.0, 0.0, 9.0, 11.0, 0.0, None):
        if pause_s is None:
            world.restart_daemon()
            until(world, world.state.progress.step + 1)
        world.mono += int((pause_s or 0.0) * 1e9)
        world.crash_trainer()
        until(world, world.state.progress.step + 1)
    died = [one.restart_s for one in find(world, m.TrainerDied) if one.reason is m.DeathReason.SIGNAL]
    assert died == [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]
