"""The run's first or last checkpoint could not be written: it is ordered again, under another id."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.simulate import World, completes, find, tick_until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.rules.checkpoints import NEEDED_ATTEMPTS

WHY = "cannot be written to /r: Input/output error"
LOW, ENOUGH = m.DiskMeasured(free=1, floor=100), m.DiskMeasured(free=1000, floor=100)


def failing(
    times: int,
    instead: Callable[[World], None] = lambda _: None,
    *,
    which: m.CheckpointReason = m.CheckpointReason.END,
    needs: int = 0,
) -> World:
    """A world whose trainer cannot write this checkpoint so many times; `instead` happens before each failure."""
    world = World(0)
    tick_until(world, lambda: world.trainer is not None, "a trainer")
    trainer, left = world.trainer, [times]
    written = trainer._written

    def attempt(id_: str) -> m.CheckpointWrittenReport | m.CheckpointFailedReport:
        if world.state.checkpoints.reason_of(id_) is not which or not left[0]:
            return written(id_)
        left[0] -= 1
        instead(world)
        return m.CheckpointFailedReport(id=id_, why=WHY, needs=needs)

    trainer._written = attempt
    return world


def ends(world: World, which: m.CheckpointReason = m.CheckpointReason.END) -> list[str]:
    return [one.id for one in find(world, m.CheckpointBegun) if one.reason is which]


def test_one_that_fails_is_ordered_again_under_another_id():
    """The run completes with the state of its end; each attempt has its end in the journal."""
    world = failing(NEEDED_ATTEMPTS - 1)
    completes(world)

    assert len(set(ends(world))) == NEEDED_ATTEMPTS
    assert [one.id for one in find(world, m.CheckpointAborted)] == ends(world)[:-1]
    assert find(world, m.RunCompleted)[0].checkpoint == ends(world)[-1]
    assert world.state.checkpoints.needed_failures == 0


def test_a_disk_that_always_fails_ends_the_run_with_the_reason():
    """There is an end to it."""
    world = failing(10**6)
    world.run()

    assert world.state.run.phase is st.Phase.FAILED
    assert world.state.run.failure is m.FailureKind.STORAGE
    assert WHY in world.state.run.why
    assert len(ends(world)) == NEEDED_ATTEMPTS
    # The next start makes the end again from the checkpoint before, and may write it.
    assert world.state.checkpoints.newest is not None


def test_a_disk_that_is_low_is_waited_for():
    """However long it takes: the trainer keeps the state, and the checkpoint is ordered when there is space."""
    world = failing(1, lambda world: world.give(LOW))
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")
    for _ in range(50):
        world.tick()
    assert world.state.run.phase is st.Phase.PAUSED
    assert world.trainer is not None
    assert len(ends(world)) == 1
    world.give(ENOUGH)
    completes(world)

    assert len(ends(world)) == 2
    assert len(find(world, m.DiskLow)) == len(find(world, m.RunResumed)) == 1


def test_a_pause_of_an_operator_is_waited_for_too():
    """On a disk that recovers meanwhile, only `resume` lets the run end."""

    def both(world: World) -> None:
        world.command(m.Pause())
        world.give(LOW)
        world.give(ENOUGH)

    world = failing(1, both)
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")
    world.command(m.Resume())
    completes(world)


def test_a_run_that_trains_on_forgets_the_failure():
    """A later end was ordered while it waited for space: the checkpoint is that of the new end, not of the old one."""
    world = failing(1, lambda world: world.give(LOW))
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")
    end = world.state.progress.step
    assert world.command(m.Extend(epochs=world.state.progress.epoch + 1))
    world.give(ENOUGH)
    completes(world)

    assert world.state.progress.step > end
    assert world.state.checkpoints.newest.step == world.state.progress.step


def test_one_that_is_lost_with_its_trainer_is_made_again_by_the_next():
    """As ever: the death is recorded, and the steps up to the end are made again."""
    world = World(0)
    tick_until(world, lambda: world.state.checkpoints.is_ending, "the last checkpoint")
    world.crash_trainer()
    completes(world)
    assert len(ends(world)) == 2
    assert world.state.checkpoints.needed_failures == 0


def test_the_first_one_is_ordered_again_too():
    """Training goes on meanwhile."""
    world = failing(NEEDED_ATTEMPTS - 1, which=m.CheckpointReason.START)
    completes(world)

    assert len(ends(world, m.CheckpointReason.START)) == NEEDED_ATTEMPTS
    assert len(find(world, m.CheckpointAborted)) == NEEDED_ATTEMPTS - 1


def test_the_first_one_waits_for_space():
    """A run whose disk is too small for it pauses. With space it has a checkpoint before anything else."""
    world = failing(1, lambda world: world.give(LOW), which=m.CheckpointReason.START)
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")
    assert world.state.checkpoints.newest is None
    world.give(ENOUGH)
    tick_until(world, lambda: world.state.checkpoints.newest is not None, "a checkpoint")
    completes(world)


def test_one_for_which_there_is_no_space_raises_what_must_be_free():
    """It is larger than the newest one, by the state of the optimizer for example. The next measurement counts it."""
    world = failing(1, needs=10**9)
    tick_until(world, lambda: world.state.checkpoints.needs, "the failure")
    assert q.floor_bytes(world.state, 7) == 7 + 10**9
    completes(world)

    assert world.state.checkpoints.needs == 0
    assert q.floor_bytes(world.state, 7) == 7 + world.state.checkpoints.newest.size
