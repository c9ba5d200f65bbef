"""The safety window of masks: what rejects them, what follows, and what lets them stay."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from tests import order_events
from tests.core.pruning.pruned import NORM, PLAN, SPEED, PrunedTrainer, PrunedWorld
from tests.core.simulate import find, tick_until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.detection.rules import Action, Finding, Signal, Verdict
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.verdict import PruningDecision, WindowAction
from tolariad.core.messages.sentences.text import sentence


def masked(**plan):
    """A run in the safety window of its first masks."""
    world = PrunedWorld(1, epochs=5, prune=replace(PLAN, **{"window_steps": 100, **plan}))
    tick_until(world, lambda: world.state.pruning.window is not None, "masks")
    return world


def reports(world, **more):
    """The trainer's report of its window."""
    window, trainer = world.state.pruning.window, world.trainer
    report = m.PruneWatchReport(cycle=window.cycle, step=world.state.progress.step, **more)
    world.give(m.ReportReceived(incarnation=trainer.incarnation, report=report))
    return window


def test_a_trip_of_speed_lifts_the_masks_and_discards_no_step():
    """They are lifted at the next boundary, and known as rejected."""
    world = masked()
    window, step = reports(world, trips=(SPEED,)), world.state.progress.step
    tick_until(world, lambda: find(world, order_events.acted(m.ReleaseMasks)), "released")

    assert not find(world, m.RollbackBegun)
    assert world.state.progress.step >= step
    assert world.state.pruning.sets == ()
    assert world.state.pruning.rejection_of(window.sha256) is not None


def test_a_trip_of_the_gradient_norm_goes_back_to_the_checkpoint_before_the_masks():
    """The rollback leads to it, and no batch is blamed."""
    world = masked()
    window = reports(world, trips=(NORM,))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")

    assert [one.checkpoint for one in find(world, m.RolledBack)] == [window.pinned]
    assert world.state.pruning.sets == ()
    assert world.state.pruning.failures == 1
    assert not find(world, m.QuarantineAdded)


def test_an_accuracy_below_the_margin_goes_back():
    """It is judged at the validation after the masks; the margin is max(drop, 3 x spread)."""
    world = masked(accuracy_drop=0.02, spread_factor=3.0)
    before = world.state.pruning.window.accuracy_before
    world.accuracy.update(dict.fromkeys(world.accuracy, before - 0.04))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")

    (rejected,) = find(world, m.MaskSetRejected)
    assert rejected.action is WindowAction.ROLLBACK
    assert [one.threshold for one in rejected.trips] == ["accuracy_drop_threshold"]
    assert rejected.trips[0].limit == pytest.approx(0.03)


@pytest.mark.parametrize(("rise", "what"), [(0.04, m.MaskSetRejected), (0.02, m.MaskSetPassed)])
def test_the_loss_stands_for_an_accuracy_that_is_not_measured(monkeypatch, rise, what):
    """Its relative rise is held against the same margin, here 0.03."""
    monkeypatch.setattr(PrunedTrainer, "metric", "loss")
    world = masked(accuracy_drop=0.02, spread_factor=3.0, window_steps=2)
    before = world.state.pruning.window.loss_before
    world.accuracy.update(dict.fromkeys(world.accuracy, before * (1 + rise)))
    tick_until(world, lambda: find(world, what), "judged")

    (applied, *_), (judged, *_) = find(world, order_events.acted(m.MaskUnits)), find(world, what)
    assert (applied.outcome.accuracy_before, applied.outcome.loss_before) == (1.0, before)
    if what is m.MaskSetPassed:
        assert judged.accuracy == pytest.approx(1 - rise)
        said = f"loss {before:.4g} before, {before * (1 + rise):.4g} after them."
        assert sentence(judged) == f"The masks of cycle {judged.cycle} stay: {said}"
    else:
        assert judged.action is WindowAction.ROLLBACK
        assert judged.why == "the loss rose by 0.04 of what it was (limit 0.03)"


def test_an_accuracy_that_is_no_number_goes_back():
    """A NaN is not within the margin."""
    world = masked()
    world.accuracy.update(dict.fromkeys(world.accuracy, math.nan))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")

    (rejected,) = find(world, m.MaskSetRejected)
    assert rejected.action is WindowAction.ROLLBACK
    assert [one.threshold for one in rejected.trips] == ["accuracy_drop_threshold"]


def test_masks_within_the_margin_pass_and_the_next_cycle_begins():
    """After the trainer's report and a validation, in either order."""
    world = masked(accuracy_drop=0.5)
    reports(world, norm_ratio=1.0)
    assert not find(world, m.MaskSetPassed)
    tick_until(world, lambda: find(world, m.MaskSetPassed), "passed")
    tick_until(world, lambda: len(find(world, m.PruneCycleBegun)) > 1, "the next cycle")

    assert world.state.pruning.failures == 0


def test_a_rollback_to_the_last_step_of_a_window_leaves_it_measured():
    """The trainer's report is older than the target, so it does not come again. Else the window never ended."""
    world = masked(window_steps=1)
    tick_until(world, lambda: world.state.pruning.window.is_watched, "watched")
    step = world.state.progress.step
    world.command(m.Checkpoint())
    tick_until(world, lambda: world.state.checkpoints.newest.step == step, "a checkpoint")
    assert world.state.pruning.window.until_step == step
    assert world.command(m.Rollback(to=world.state.checkpoints.newest.id))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")

    assert world.state.pruning.window.is_watched
    tick_until(world, lambda: find(world, m.MaskSetPassed), "passed")


def test_a_finding_of_the_detector_blames_the_masks_and_no_batch():
    """It goes back to the checkpoint before them, also if a newer one could be used."""
    world = masked()
    window, at = world.state.pruning.window, world.state.progress
    verdict = Verdict(Finding.SUSTAINED, Signal.LOSS, 9.0, 1.0, 2.0, Action.ROLLBACK)
    place = {"step": at.step + 1, "epoch": at.epoch, "batch": at.batch + 1, "first_batch": at.batch + 1}
    report = m.InstabilityReport(verdict=verdict, late=False, **place)
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))

    (raised,) = find(world, m.EmergencyRaised)
    assert raised.checkpoint == window.pinned
    assert raised.suspects is None
    assert len(find(world, m.MaskSetRejected)) == len(find(world, m.RollbackBegun)) == 1


def test_three_failures_in_a_row_stop_pruning_until_an_operator_enables_it():
    """The phase is DISABLED, orders are refused with the way out, and `enable` closes the breaker."""
    world = PrunedWorld(1, epochs=5, prune=PLAN)
    world.answer_to = lambda effect: m.AnalysisReply(cycle=effect.cycle, why="it died")
    for _ in range(PLAN.failures):
        tick_until(world, lambda: world.state.checkpoints.newest, "a checkpoint")
        failed = len(find(world, m.PruneCycleFailed))
        if world.state.pruning.open is None:
            tick_until(world, lambda: world.state.trainer.began, "training")
            world.command(m.PruneAnalyze())
        tick_until(world, lambda n=failed: len(find(world, m.PruneCycleFailed)) > n, "a failure")

    assert len(find(world, m.PruneBreakerOpened)) == 1
    assert q.phase_of(world.state) is PruningPhase.DISABLED
    assert "prune enable" in world.command(m.PruneAnalyze()).why
    world.command(m.PruneEnable())
    assert q.phase_of(world.state) is not PruningPhase.DISABLED


def test_masks_that_act_say_how_accurate_the_newer_weights_were():
    """As the trainer measured it at the boundary, without the masks and with them."""
    (applied,) = find(masked(), order_events.acted(m.MaskUnits))

    assert (applied.outcome.accuracy_now, applied.outcome.accuracy_masked) == (0.9, 0.88)


@pytest.mark.parametrize("trip", [SPEED, NORM])
def test_the_third_failure_in_a_row_undoes_its_masks_and_opens_the_breaker(trip):
    """For any consequence of the limit, nothing of a set that did not pass stays, and nothing is pruned any more."""
    world = masked()
    for number in range(1, PLAN.failures + 1):
        reports(world, trips=(trip,))
        tick_until(
            world,
            lambda n=number: len(find(world, order_events.acted(m.ReleaseMasks)) + find(world, m.RolledBack)) == n,
            "gone",
        )
        assert world.state.pruning.sets == ()
        if number < PLAN.failures:
            tick_until(world, lambda: world.state.pruning.window is not None, "masks again")

    assert len(find(world, m.PruneBreakerOpened)) == 1
    assert q.phase_of(world.state) is PruningPhase.DISABLED


@pytest.mark.parametrize("name", ["memory_usage_threshold", "training_speed_threshold"])
def test_the_sources_letter_discards_weights_for_speed_and_memory_too(name):
    """`prune.safety.*_action: rollback`, by which the trainer names the action of a limit that is exceeded."""
    world = masked()
    window = reports(world, trips=(replace(SPEED, threshold=name, action=WindowAction.ROLLBACK),))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")

    assert [one.checkpoint for one in find(world, m.RolledBack)] == [window.pinned]
    assert not find(world, order_events.acted(m.ReleaseMasks))


def test_what_only_validated_is_not_masked_by_itself_even_if_pruning_has_begun_since():
    """An analysis of VALIDATION_ONLY that took long changes nothing; an operator may order its masks."""
    world, late = PrunedWorld(1, epochs=9, prune=replace(PLAN, transition_epoch=1)), []

    def held_back(effect):
        late.append(PrunedWorld.answer_to(world, effect))
        return m.AnalysisReply(cycle=0, why="The answer to cycle 1 comes later.")

    world.answer_to = held_back
    tick_until(world, lambda: q.phase_of(world.state) is PruningPhase.ACTIVE_PRUNING, "the phase")
    world.give(late[0])

    assert [one.phase for one in find(world, m.PruneCycleBegun)] == [PruningPhase.VALIDATION_ONLY]
    assert len(find(world, m.PruneAnalyzed)) == 1
    assert not find(world, order_events.given(m.MaskUnits))
    world.command(m.PruneApply())
    assert len(find(world, order_events.given(m.MaskUnits))) == 1


def test_a_conditional_go_is_watched_twice_as_long():
    """And an analysis that takes more than half of its budget then is refused."""
    world = PrunedWorld(1, epochs=5, prune=PLAN)
    answer = PrunedWorld.answer_to

    def conditional(effect):
        given = answer(world, replace(effect, share=effect.share / 2, cap=effect.cap / 2))
        found = replace(given.found, decision=PruningDecision.CONDITIONAL_GO, reasons=("A doubt.",))
        return replace(given, found=found)

    world.answer_to = conditional
    tick_until(world, lambda: find(world, order_events.given(m.MaskUnits)), "masks")

    assert find(world, order_events.given(m.MaskUnits))[0].order.window_steps == 2 * PLAN.window_steps


@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_compaction_of_the_schedule_that_a_rollback_took_back_is_ordered_again(is_disabled):
    """The window of its masks has ended and is not judged again, so nothing else would order it."""
    world = masked(window_steps=3, compact_every=1)
    world.command(m.Checkpoint())
    tick_until(world, lambda: world.state.checkpoints.newest.orders == 1, "a checkpoint with masks")
    held = world.state.checkpoints.newest
    assert world.state.pruning.window is not None
    tick_until(world, lambda: find(world, order_events.acted(m.CompactModel)), "a compaction")
    if is_disabled:
        world.command(m.PruneDisable())
    world.command(m.Rollback(to=held.id))
    tick_until(world, lambda: find(world, m.RolledBack), "rolled back")
    assert [one.cycle for one in world.state.pruning.sets] == [1]
    tick_until(world, lambda: world.state.progress.step > held.step + 5, "steps after it")

    assert [one.order.cycle for one in find(world, order_events.acted(m.CompactModel))] == (
        [1] if is_disabled else [1, 1]
    )
    assert find(world, m.MaskSetPassed)[0].cycle == 1
