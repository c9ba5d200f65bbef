"""Masks that would act too late: after a rollback, after pruning was disabled, or in a run that prunes no more."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.checkpoints.test_exhausted import reconfigured
from tests.core.pruning.pruned import NORM, PLAN, PrunedWorld
from tests.core.pruning.test_window import masked, reports
from tests.core.simulate import find, tick_until
from tolariad.core import messages as m
from tolariad.core.calc.pruning.phase import PruningPhase


def waiting():
    """A run whose trainer died when it was to mask: the next trainer gets the order after its re-run."""
    world = PrunedWorld(1, epochs=5, prune=PLAN)
    tick_until(world, lambda: find(world, order_events.given(m.MaskUnits)), "masks")
    world.crash_trainer()
    tick_until(world, lambda: find(world, m.TrainerDied), "its death")
    assert list(world.state.boundary.of_kind(m.MaskUnits))
    return world


def test_masks_that_wait_when_the_run_goes_back_never_act():
    """The branch that was analysed is left. That is no failure of theirs, and the next cycle begins."""
    world = waiting()
    (ordered,) = find(world, order_events.given(m.MaskUnits))
    assert world.command(m.Rollback())
    (ended,) = find(world, order_events.aborted(m.MaskUnits))

    assert (ended.order.cycle, ended.why) == (ordered.order.cycle, "the run went back before they acted")
    assert world.state.boundary.waiting == ()
    assert world.state.pruning.failures == 0
    tick_until(world, lambda: find(world, order_events.acted(m.MaskUnits)), "masks of another cycle")
    assert find(world, order_events.acted(m.MaskUnits))[0].order.cycle > ordered.order.cycle
    assert ordered.order.cycle not in world.trainer.sets


@pytest.mark.parametrize("how", ["order", "configuration"])
def test_masks_that_act_after_pruning_was_disabled_are_lifted(how):
    """By an order, or because the run was started again with `prune.enabled: false`."""
    world = waiting()
    if how == "order":
        world.command(m.PruneDisable())
    else:
        reconfigured(world, prune=None)
    tick_until(world, lambda: find(world, order_events.acted(m.ReleaseMasks)), "lifted")

    (ordered,) = find(world, order_events.given(m.ReleaseMasks))
    assert ordered.why == "pruning was disabled after they were ordered"
    assert world.state.pruning.sets == () == tuple(world.trainer.sets)
    assert world.state.pruning.window is None
    assert world.state.pruning.failures == 0


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_window_ends_although_pruning_was_disabled_in_the_configuration(drop):
    """Otherwise it stayed open, kept its checkpoint, and an emergency long after would lead back to that."""
    world = masked(window_steps=1, accuracy_drop=0.5)
    world.accuracy.update(dict.fromkeys(world.accuracy, world.state.pruning.window.accuracy_before - drop))
    reconfigured(world, prune=None)
    tick_until(world, lambda: world.state.pruning.window is None, "its end")

    assert len(find(world, m.MaskSetRejected)) == (drop > 0.0)
    assert len(find(world, m.MaskSetPassed)) == (drop == 0.0)


def test_a_norm_is_judged_although_pruning_was_disabled_by_an_order():
    """`tolaria prune disable` leaves masks in force, and so what protects the run from them."""
    world = masked()
    world.command(m.PruneDisable())
    window = reports(world, trips=(NORM,))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")

    assert [one.checkpoint for one in find(world, m.RolledBack)] == [window.pinned]


def test_a_checkpoint_tells_of_masks_although_the_configuration_prunes_no_more():
    """They are in force: its manifest has their share, and the newest importance."""
    world = masked()
    reconfigured(world, prune=None)
    world.command(m.Checkpoint())
    *_, order = [one for one in world.trainer.orders if isinstance(one, m.TakeCheckpoint)]

    assert order.pruned == world.state.pruning.share > 0.0
    assert order.importance == world.state.pruning.files[-1].file
    assert order.pruning_phase is PruningPhase.DISABLED
