"""The weights a run begins with are ordered until its own first checkpoint holds them."""

from __future__ import annotations

from msgspec.structs import replace

from tests.core.simulate import World, completes, daemon_started, find, run_started
from tolariad.core import messages as m
from tolariad.core.state.run_state import RunState

PARENT = m.Parent(run_id="aa", checkpoint="c000003", manifest="bb", folder="/runs/other")


def begun():
    """A world whose run begins from PARENT, up to its order to train."""
    world = World(0)
    world.state, world.events = RunState(), []
    world.due.clear()
    started = replace(run_started(), parent=PARENT.run_id, began_from=PARENT)
    world.give(m.Opened(mode=m.StartMode.EXPLICIT, facts=(started, daemon_started())))
    return world


def ordered(world):
    """The next order to train."""
    while world.trainer is None or world.trainer.order is None:
        world.tick()
    return world.trainer.order


def test_the_parent_is_ordered_until_the_first_checkpoint_is_committed():
    """A death before it begins there again; after it, the run's own checkpoint is the beginning."""
    world = begun()
    assert ordered(world).parent == PARENT
    world.restart_daemon()
    assert ordered(world).parent == PARENT
    while not world.state.checkpoints.catalogue:
        world.tick()
    world.restart_daemon()
    order = ordered(world)
    assert (order.parent, order.checkpoint.step) == (None, 0)
    completes(world)


def test_a_parent_that_cannot_be_used_ends_the_run_with_the_sentence():
    """A misfit is an error of the configuration, not a damaged checkpoint of this run."""
    world = begun()
    ordered(world)
    report = m.CheckpointUnusableReport(id="", file="model.safetensors", why="fc.weight: it holds (3, 4)")
    world.trainer.todo.clear()
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    world.run()
    assert (world.exit, world.state.run.failure) == (78, m.FailureKind.CONFIGURATION)
    assert "fc.weight" in world.state.run.why
    assert PARENT.folder in world.state.run.why
    assert not find(world, m.CheckpointRejected)
