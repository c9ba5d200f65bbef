"""Orders of rates after checkpoints that do not hold them, and after rollbacks: each acts once, at its step, or is
undone.
"""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.rated import RatedWorld
from tests.core.simulate import find, take_checkpoint, until, until_found
from tests.core.test_lifecycle import troubled
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.sentences.text import sentence


def gone_back(world, **how):
    """Order it and let it come to its end; a trainer trains again."""
    world.command(m.Rollback(**how))
    until_found(world, m.RolledBack)
    while not world.trainer or not world.state.trainer.began:
        world.tick()
    return world


def test_an_ordered_rate_that_a_rollback_undoes_is_said():
    """Which one, and how to set it again. One that acts at the target is not mentioned, and then nothing is said."""
    world = until(RatedWorld(0), 4)
    world.lr_set("head", 0.02)
    until_found(world, order_events.acted(m.SetRate))
    take_checkpoint(world)
    target = world.state.checkpoints.newest
    world.lr_set("body", 0.01)
    until(world, target.step + 3)
    gone_back(world, to=target.id)
    (restored,) = find(world, m.RatesRestored)

    assert [(one.group, one.rate) for one in restored.undone] == [("body", 0.01)]
    assert "A rollback undid the learning rate 0.01 of body, set at step" in sentence(restored)
    assert [one.event.undone for one in world.state.said.latest if isinstance(one.event, m.RatesRestored)] == [
        restored.undone
    ]


def test_a_checkpoint_before_an_epoch_s_recorded_end_misses_no_order_after_it():
    """Taken between a start there and that end: it does not hold the order, and says so; the next start repeats it."""
    world = until(RatedWorld(0, checkpoint_every_epochs=2), 4)
    until_found(world, m.EpochFinished)
    world.lr_set("head", 0.01)
    until_found(world, order_events.acted(m.SetRate))
    assert world.state.progress.step == 4
    world.crash_trainer()
    until_found(world, m.RerunFinished)
    take_checkpoint(world)
    taken = world.state.checkpoints.newest
    world.crash_trainer()
    world.run()

    begun = find(world, m.CheckpointBegun)[1]
    assert (taken.epoch, taken.step, taken.orders, begun.orders) == (1, 4, 0, 1)
    assert taken.script_from < taken.begun_seq
    assert find(world, m.TrainingStarted)[2].checkpoint == taken.id
    assert find(world, m.LrViolationDetected) == []
    assert [event.applied_before_step for event in find(world, order_events.acted(m.SetRate))] == [5]
    assert world.state.run.phase is st.Phase.COMPLETED


def test_an_order_that_waits_acts_once_although_the_checkpoint_to_start_from_is_refused():
    """The trainer has it already when it is told to start from an older one."""
    world = until(RatedWorld(0), 6)
    take_checkpoint(world)
    world.crash_trainer()
    world.broken.add(world.state.checkpoints.newest.id)
    world.lr_set("head", 0.01)
    until_found(world, m.CheckpointRejected)
    world.run()

    assert [event.number for event in find(world, order_events.acted(m.SetRate))] == [1]
    assert max(world.saved.items())[1] == (world.state.rates.groups, 1)


@pytest.mark.parametrize("epoch_ended", [False, True])
def test_a_rollback_whose_target_is_refused_at_the_start_ends_with_the_target_s_rates(epoch_ended):
    """The run starts from an older checkpoint and repeats the steps up to the target, with no orders after it."""
    world = until(RatedWorld(0), 2)
    take_checkpoint(world)
    older = world.state.checkpoints.newest
    world.lr_set("head", 0.01)
    until_found(world, order_events.acted(m.SetRate))
    if epoch_ended:
        until_found(world, m.EpochFinished)
        world.lr_set("body", 0.05)
        while len(find(world, order_events.acted(m.SetRate))) < 2:
            world.tick()
    take_checkpoint(world)
    target = world.state.checkpoints.newest
    world.lr_set("head", 0.04)
    until(world, 7)
    if not epoch_ended:
        # The newest epoch's end has one of its own.
        world.broken.update(one.id for one in world.state.checkpoints.catalogue if one.step > target.step)
    else:
        world.broken.update(one.id for one in world.state.checkpoints.catalogue if one.step >= 4)
    held, orders = world.saved[target.id]
    world.command(m.Rollback(to=target.id))
    world.crash_trainer()
    world.broken.add(target.id)
    until_found(world, m.RatesRestored)

    (started,) = [event for event in find(world, m.TrainingStarted) if event.rates_owed]
    assert started.checkpoint == older.id
    assert orders == 1 + epoch_ended
    assert (world.state.rates.groups, world.state.boundary.acted) == (held, orders)
    assert not world.state.rates.stale
    world.run()
    assert find(world, m.LrViolationDetected) == []
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.parametrize("who", ["nobody", "trainer", "daemon"])
def test_a_rollback_takes_back_what_was_ordered_after_its_target_and_the_count_of_it(who):
    """By a living trainer or by the next start: rates and count are the target's, here and in the trainer."""
    world = until(RatedWorld(0), 6)
    world.lr_set("head", 0.01)
    until_found(world, order_events.acted(m.SetRate))
    world.command(m.Rollback(epoch=1))
    if who == "trainer":
        world.crash_trainer()
    elif who == "daemon":
        world.restart_daemon()
    until_found(world, m.RolledBack) if who == "nobody" else until_found(world, m.TrainingStarted)
    count, applied = world.state.boundary.acted, world.trainer.applied
    world.lr_set("head", 0.04)
    world.run()

    assert (count, applied) == (0, 0)
    assert [event.number for event in find(world, order_events.acted(m.SetRate))] == [1, 1]
    assert find(world, m.LrViolationDetected) == []
    assert world.state.run.phase is st.Phase.COMPLETED


def test_an_order_at_a_checkpoint_s_own_boundary_outlives_a_start_although_the_run_went_back_once():
    """It acted after the checkpoint and before any step: the next trainer gets it from the script, and nothing undoes
    it.
    """
    world = until(gone_back(until(RatedWorld(0), 6), epoch=1), 6)
    take_checkpoint(world)
    step = world.state.progress.step
    assert world.state.checkpoints.newest.step == step
    world.command(m.Pause())
    world.lr_set("head", 0.01)
    until_found(world, order_events.acted(m.SetRate))
    assert world.state.progress.step == step
    world.restart_daemon()
    world.command(m.Resume())
    world.run()

    assert [group.scale.value for group in world.state.rates.groups if group.name == "head"] == [0.01]
    assert find(world, m.LrViolationDetected) == []


def test_a_checkpoint_of_the_target_s_step_that_holds_a_later_order_is_abandoned():
    """Two checkpoints of one step, an order between them: after a rollback to the first, no start uses the second."""
    world = until(RatedWorld(0), 6)
    world.command(m.Pause())
    until_found(world, m.RunPaused)
    take_checkpoint(world)
    first = world.state.checkpoints.newest
    world.lr_set("head", 0.01)
    until_found(world, order_events.acted(m.SetRate))
    take_checkpoint(world)
    second = world.state.checkpoints.newest
    world.command(m.Rollback(to=first.id))
    until_found(world, m.RolledBack)
    world.restart_daemon()
    world.command(m.Resume())
    world.run()

    assert first.step == second.step
    assert find(world, m.TrainingStarted)[-1].checkpoint == first.id
    assert find(world, m.LrViolationDetected) == []
    assert world.state.boundary.acted == 0


def test_disasters_rollbacks_and_orders_of_rates_together_leave_one_set_of_rates(seed):
    """Forty drawn worlds: no step is ever made at rates that the journal does not lead to, and counts agree."""
    orders = back = 0
    for offset in range(40):
        world = RatedWorld(seed + offset, deaths_max=50)
        world.goes_back = True
        troubled(world)
        assert find(world, m.LrViolationDetected) == [], f"seed {seed + offset}"
        orders += len(find(world, order_events.acted(m.SetRate)))
        back += world.state.rollbacks.done
    print(f"{orders} orders acted, {back} rollbacks")
    assert orders >= 40
    assert back >= 10
