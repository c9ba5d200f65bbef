"""The safety window of masks: what rejects them, what follows, and what lets them stay."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.pruning.pruned import NORM, PLAN, SPEED, PrunedWorld
from tests.core.simulate import find, tick_until
from tolariad.core.detection.rules import Action, Finding, Signal, Verdict
from tolariad.core.health import quarantine_words as qn
from tolariad.core.health import words as hv
from tolariad.core.inputs import AnalysisReply, ReportReceived
from tolariad.core.pruning import ask
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import words as pr
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.pruning.verdict import PruningDecision, WindowAction
from tolariad.core.rollback import words as rb


def masked(**plan):
    """A run in the safety window of its first masks."""
    world = PrunedWorld(1, epochs=5, prune=replace(PLAN, **{"window_steps": 100, **plan}))
    tick_until(world, lambda: world.state.pruning.window is not None, "masks")
    return world


def reports(world, **more):
    """The trainer's report of its window."""
    window, trainer = world.state.pruning.window, world.trainer
    report = mk.PruneWatchReport(cycle=window.cycle, step=world.state.progress.step, **more)
    world.give(ReportReceived(incarnation=trainer.incarnation, report=report))
    return window


def test_a_trip_of_speed_lifts_the_masks_and_discards_no_step():
    """They are lifted at the next boundary, and known as rejected."""
    world = masked()
    window, step = reports(world, trips=(SPEED,)), world.state.progress.step
    tick_until(world, lambda: find(world, mk.MasksReleased), "released")

    assert not find(world, rb.RollbackBegun)
    assert world.state.progress.step >= step
    assert world.state.pruning.sets == ()
    assert world.state.pruning.is_rejected(window.sha256)


def test_a_trip_of_the_gradient_norm_goes_back_to_the_checkpoint_before_the_masks():
    """The rollback leads to it, and no batch is blamed."""
    world = masked()
    window = reports(world, trips=(NORM,))
    tick_until(world, lambda: find(world, rb.RolledBack), "rolled back")

    assert [one.checkpoint for one in find(world, rb.RolledBack)] == [window.pinned]
    assert world.state.pruning.sets == ()
    assert world.state.pruning.failures == 1
    assert not find(world, qn.QuarantineAdded)


def test_an_accuracy_below_the_margin_goes_back():
    """It is judged at the validation after the masks; the margin is max(drop, 3 x spread)."""
    world = masked(accuracy_drop=0.02, spread_factor=3.0)
    before = world.state.pruning.window.accuracy_before
    world.accuracy.update(dict.fromkeys(world.accuracy, before - 0.04))
    tick_until(world, lambda: find(world, rb.RolledBack), "rolled back")

    (rejected,) = find(world, mk.MaskSetRejected)
    assert rejected.action is WindowAction.ROLLBACK
    assert [one.threshold for one in rejected.trips] == ["accuracy_drop_threshold"]
    assert rejected.trips[0].limit == pytest.approx(0.03)


def test_masks_within_the_margin_pass_and_the_next_cycle_begins():
    """After the trainer's report and a validation, in either order."""
    world = masked(accuracy_drop=0.5)
    reports(world, norm_ratio=1.0)
    assert not find(world, mk.MaskSetPassed)
    tick_until(world, lambda: find(world, mk.MaskSetPassed), "passed")
    tick_until(world, lambda: len(find(world, pr.PruneCycleBegun)) > 1, "the next cycle")

    assert world.state.pruning.failures == 0


def test_a_finding_of_the_detector_blames_the_masks_and_no_batch():
    """It goes back to the checkpoint before them, also if a newer one could be used."""
    world = masked()
    window, at = world.state.pruning.window, world.state.progress
    verdict = Verdict(Finding.SUSTAINED, Signal.LOSS, 9.0, 1.0, 2.0, Action.ROLLBACK)
    place = {"step": at.step + 1, "epoch": at.epoch, "batch": at.batch + 1, "first_batch": at.batch + 1}
    report = hv.InstabilityReport(verdict=verdict, late=False, **place)
    world.give(ReportReceived(incarnation=world.trainer.incarnation, report=report))

    (raised,) = find(world, hv.EmergencyRaised)
    assert raised.checkpoint == window.pinned
    assert raised.suspects is None
    assert len(find(world, mk.MaskSetRejected)) == len(find(world, rb.RollbackBegun)) == 1


def test_three_failures_in_a_row_stop_pruning_until_an_operator_enables_it():
    """The phase is DISABLED, orders are refused with the way out, and `enable` closes the breaker."""
    world = PrunedWorld(1, epochs=5, prune=PLAN)
    world.answer_to = lambda effect: AnalysisReply(cycle=effect.cycle, why="it died")
    for _ in range(PLAN.failures):
        tick_until(world, lambda: world.state.checkpoints.newest, "a checkpoint")
        failed = len(find(world, pr.PruneCycleFailed))
        if world.state.pruning.open is None:
            tick_until(world, lambda: world.state.trainer.began, "training")
            world.command(pr.PruneAnalyze())
        tick_until(world, lambda n=failed: len(find(world, pr.PruneCycleFailed)) > n, "a failure")

    assert len(find(world, pr.PruneBreakerOpened)) == 1
    assert ask.phase_of(world.state) is PruningPhase.DISABLED
    assert "prune enable" in world.command(pr.PruneAnalyze()).why
    world.command(pr.PruneEnable())
    assert ask.phase_of(world.state) is not PruningPhase.DISABLED


def test_a_conditional_go_is_watched_twice_as_long():
    """And an analysis that takes more than half of its budget then is refused."""
    world = PrunedWorld(1, epochs=5, prune=PLAN)
    answer = PrunedWorld.answer_to

    def conditional(effect):
        given = answer(world, replace(effect, share=effect.share / 2, cap=effect.cap / 2))
        found = replace(given.found, decision=PruningDecision.CONDITIONAL_GO, reasons=("A doubt.",))
        return replace(given, found=found)

    world.answer_to = conditional
    tick_until(world, lambda: find(world, mk.MasksOrdered), "masks")

    assert find(world, mk.MasksOrdered)[0].window_steps == 2 * PLAN.window_steps
