"""More that must stay than the quota: what is kept, what still goes, who is held back, and when that is over."""

from __future__ import annotations

from msgspec.structs import replace

from tests.core.simulate import World, completes, find, tick_until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st

# Each checkpoint of the simulated run has 10 bytes; four are pinned: the first, and the last three.
EVERY_EPOCH = {"checkpoint_every_epochs": 1, "checkpoint_gap_s": 0.0}


def reconfigured(world: World, **policy: object) -> None:
    """As SIGHUP does it."""
    change = m.ConfigChanged(
        config="{}", config_hash="ab", policy=replace(world.state.run.policy, **policy), keys=("q",)
    )
    world.give(m.Reconfigured(change=change))


def told(world: World) -> list[str]:
    """Return the events of the quota, in order."""
    kinds = (m.StorageExhausted, m.StorageRelieved)
    return [type(event).__name__ for event in world.events if isinstance(event, kinds)]


def test_a_run_whose_pins_are_more_than_the_quota_goes_on_and_keeps_every_one_of_them():
    """The run commits as it does without a quota, and never deletes a pinned checkpoint.

    It reports the state once, also if a trainer dies or the daemon restarts meanwhile.
    """
    world, calm = World(0, quota=15, **EVERY_EPOCH), World(0, **EVERY_EPOCH)
    calm.run()
    for _ in range(2000):
        if world.exit is not None:
            break
        before, seen = world.state.checkpoints, len(world.events)
        world.tick()
        pins = q.pinned_checkpoints(before, 3)
        begun = [event for event in world.events[seen:] if isinstance(event, m.CheckpointDeletionBegun)]
        now = q.pinned_checkpoints(world.state.checkpoints, 3)
        assert not {one.id for one in begun} & set(now)
        newest = world.state.checkpoints.newest
        assert newest is None or newest.id in now
        assert before.newest is None or before.newest.id in pins
        if world.state.progress.step == 6 and len(find(world, m.DaemonStarted)) == 1:
            world.restart_daemon()
        if world.state.progress.step == 10 and world.state.trainer.incarnation == 2 and world.trainer:
            world.crash_trainer()

    committed = [event.step for event in find(world, m.CheckpointCommitted)]
    assert committed == [event.step for event in find(calm, m.CheckpointCommitted)]
    assert world.state.run.phase is st.Phase.COMPLETED
    assert (len(find(world, m.DaemonStarted)), len(find(world, m.TrainerDied))) == (2, 2)
    assert told(world) == ["StorageExhausted"]
    assert world.state.checkpoints.exhausted


def test_what_leaves_the_pins_while_it_lasts_goes_at_once_and_nothing_else():
    """With each new checkpoint the oldest of the last good ones."""
    world = World(0, quota=15, keep_last=1, **EVERY_EPOCH)
    world.run()
    gone = [event.id for event in find(world, m.CheckpointDeletionBegun)]
    committed = [event.id for event in find(world, m.CheckpointCommitted)]

    assert gone == committed[1:-1]
    assert [one.id for one in world.state.checkpoints.catalogue] == [committed[0], committed[-1]]
    assert told(world) == ["StorageExhausted"]


def test_it_is_over_with_a_larger_quota_or_fewer_pins_and_may_come_again():
    """Read from the configuration while it trains; each time said once."""
    world = World(0, quota=15, **EVERY_EPOCH)
    tick_until(world, lambda: len(world.state.checkpoints.catalogue) == 3, "two epochs' checkpoints")
    first = told(world)
    reconfigured(world, quota=30)
    raised = told(world)
    reconfigured(world, quota=20)
    reconfigured(world, quota=19)
    lowered = told(world)
    reconfigured(world, quota=20, keep_last=1)
    fewer = told(world)

    assert (first, raised[1:], lowered[2:]) == (["StorageExhausted"], ["StorageRelieved"], ["StorageExhausted"])
    assert fewer[3:] == ["StorageRelieved"]
    assert len(find(world, m.CheckpointDeletionBegun)) == 1
    completes(world)
