"""Limits that end a run before its last epoch, and the checkpoint that is kept as the best, through any death."""

from __future__ import annotations

import math

import pytest

from tests.core.facts import EPOCHS
from tests.core.simulate import World, completes, find, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.test_lifecycle import BEST_EPOCH, KEEP_BEST, assert_every_begun_has_one_end, kept
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.settings.values import read_metric
from tolariad.core.state.run_state import RunState, fold

HOUR_NS = 3600 * 10**9
PATIENCE = {"patience": 1, "metric": "accuracy", "better": m.Better.MIN}


@pytest.mark.parametrize(
    ("policy", "limit", "step", "epochs"),
    [
        ({"stop_epochs": 2}, m.Limit.EPOCHS, 8, 2),
        ({"stop_steps": 6}, m.Limit.STEPS, 6, 1),
        ({"stop_steps": 4}, m.Limit.STEPS, 4, 1),
        (PATIENCE, m.Limit.PATIENCE, 8, 2),
        ({"stop_epochs": 9, "stop_steps": 99}, None, EPOCHS * STEPS_PER_EPOCH, EPOCHS),
        (KEEP_BEST, None, EPOCHS * STEPS_PER_EPOCH, EPOCHS),
    ],
    ids=["epochs", "steps", "steps at an epoch's end", "patience", "beyond the end", "best"],
)
def test_a_limit_ends_the_run_at_the_same_step_wherever_its_daemon_dies(policy, limit, step, epochs):
    """One death after each event of the undisturbed run; what training did, and what is kept of it, is the same."""
    calm = World(0, **policy)
    calm.run()
    assert (calm.state.run.phase, calm.exit) == (st.Phase.COMPLETED, 0)
    (completed,) = find(calm, m.RunCompleted)
    assert (completed.step, completed.epochs) == (step, epochs)
    assert [event.limit for event in find(calm, m.LimitReached)] == ([limit] if limit else [])
    assert calm.state.checkpoints.newest.reason is m.CheckpointReason.END
    for place in range(3, len(calm.events)):
        world = World(0, **policy)
        while len(world.events) < place:
            world.tick()
        world.restart_daemon()
        world.run()
        assert world.state.progress.digest == calm.state.progress.digest, place
        assert find(world, m.RunCompleted)[0].epochs == epochs, place
        assert len(find(world, m.LimitReached)) == (limit is not None), place
        assert kept(world) == kept(calm), place
        assert_every_begun_has_one_end(world)


def test_the_best_epochs_end_is_kept_and_no_later_one_in_its_place():
    """Beside the epochs' own cadence; the last epoch's is the checkpoint at the end."""
    world = World(0, checkpoint_every_epochs=100, **KEEP_BEST)
    world.run()
    reasons = [entry.reason.value for entry in world.state.checkpoints.catalogue]
    assert reasons == ["start", "best", "best", "end"]
    assert kept(world) == (BEST_EPOCH + 1, 0)
    rising = World(0, checkpoint_every_epochs=100, **KEEP_BEST)
    rising.accuracy[EPOCHS] = 0.9
    rising.run()
    assert kept(rising) == (EPOCHS + 1, 0)
    assert rising.state.checkpoints.best == rising.state.checkpoints.newest.id


def test_a_best_checkpoint_that_could_not_be_written_is_made_when_its_epoch_ends_again():
    """It failed; a worse epoch's checkpoint does not take its place, and a restart that passes there makes it."""
    world = World(0, checkpoint_every_epochs=100, **KEEP_BEST)
    until(world, 2 * STEPS_PER_EPOCH)
    while not (opened := world.state.checkpoints.open):
        world.tick()
    world.trainer.orders = type(world.trainer.orders)(
        order for order in world.trainer.orders if not isinstance(order, m.TakeCheckpoint)
    )
    world.trainer.todo.append(m.CheckpointFailedReport(id=opened[0].id, why="no space is left on the disk"))
    until(world, 2 * STEPS_PER_EPOCH + 2)
    assert kept(world) == (BEST_EPOCH, 0), "the epoch before"
    world.command(m.Checkpoint())
    world.tick()
    assert kept(world) == (BEST_EPOCH, 0), "a later state was taken for the best epoch's"
    world = World(0, checkpoint_every_epochs=100, **KEEP_BEST)
    until(world, 2 * STEPS_PER_EPOCH)
    while not world.state.checkpoints.open:
        world.tick()
    world.restart_daemon()
    world.run()
    assert kept(world) == (BEST_EPOCH + 1, 0)


def test_hours_are_those_of_training_alone():
    """Neither a pause, nor the time without a daemon, nor steps that are run again are counted; the rest is, once."""
    hours = 12e6 / HOUR_NS
    calm = World(0, stop_hours=hours)
    calm.run()
    (reached,) = find(calm, m.LimitReached)
    assert reached.limit is m.Limit.HOURS
    assert calm.state.run.phase is st.Phase.COMPLETED
    assert reached.step < EPOCHS * STEPS_PER_EPOCH

    world = World(0, stop_hours=hours)
    until(world, 2)
    before = world.state.limits.trained_until(world.mono)
    world.mono += HOUR_NS
    world.restart_daemon()
    world.mono += HOUR_NS
    while world.state.run.phase is not st.Phase.RUNNING:
        world.tick()
    assert world.state.limits.trained_ns <= before + 10**6
    until(world, 3)
    world.command(m.Pause())
    while world.state.run.phase is not st.Phase.PAUSED:
        world.tick()
    world.mono += HOUR_NS
    world.command(m.Resume())
    completes(world)
    assert hours * HOUR_NS <= world.state.limits.trained_ns < 3 * hours * HOUR_NS
    assert abs(find(world, m.LimitReached)[0].step - reached.step) <= 3


def test_a_metric_that_the_validation_does_not_have_ends_the_run_with_its_name():
    """Nothing would ever be the best; the sentence says what there is."""
    world = World(0, keep_best=True, metric="f1", better=m.Better.MAX)
    world.run()
    assert (world.state.run.failure, world.exit) == (m.FailureKind.CONFIGURATION, 78)
    assert "f1" in world.state.run.why
    assert "accuracy" in world.state.run.why


def test_a_metric_that_is_no_number_is_never_the_best():
    """Neither first nor later; patience counts on."""
    world = World(0, **PATIENCE)
    world.accuracy = {1: math.nan, 2: 0.5, 3: math.nan}
    world.run()
    assert find(world, m.LimitReached)[0].epoch == 1


def test_the_best_checkpoint_is_never_forgotten():
    """Nor the first one; the oldest of the others is."""
    at = {"manifest": "cd", "pieces": (), "size": 1, "seconds": 0.1}
    events = [
        m.CheckpointCommitted(id=f"c{n}", step=n, epoch=1, batch=n, best=n == 3, **at)
        for n in range(st.CATALOGUE_MAX + 5)
    ]
    checkpoints = fold(RunState(), events).checkpoints
    assert len(checkpoints.catalogue) == st.CATALOGUE_MAX
    assert [entry.id for entry in checkpoints.catalogue[:3]] == ["c0", "c3", "c7"]


@pytest.mark.parametrize("text", ["f1", "f1:more", ":max", ""])
def test_a_metric_says_which_way_is_better(text):
    """But for loss and accuracy, which mean the same to every task."""
    assert read_metric("loss") == ("loss", m.Better.MIN)
    assert read_metric("f1:max") == ("f1", m.Better.MAX)
    assert read_metric("accuracy:min") == ("accuracy", m.Better.MIN)
    with pytest.raises(ValueError, match="max"):
        read_metric(text)
