"""The autopilot in a whole run: what it pins, watches, compares, goes back for, and what it leaves alone."""

from __future__ import annotations

import math
import random

import pytest

from tests.core.insured import CHANGED, DAMAGED, LENGTH, POISONED, UNCLEAR, InsuredWorld, long_epochs, run_on
from tests.core.simulate import find, kinds
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.detection.comparison import Judgement
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.messages.sentences.text import sentence


@pytest.fixture(autouse=True)
def _long(monkeypatch):
    long_epochs(monkeypatch)


AT = (3, 30)


def whole(*says: m.Measured, high: int = 1000, **policy: object) -> InsuredWorld:
    """A run in which the loss rises in its third epoch and stays high."""
    world = InsuredWorld(0, {AT: high}, *says, **policy)
    world.run(6000)
    return world


def test_a_rise_pins_the_newest_state_from_before_it_and_the_run_goes_on():
    """It began twenty updates before; eight more are not trusted. The snapshot of that time is written to disk."""
    world = InsuredWorld(0, {AT: 1000}, DAMAGED)
    run_on(world, lambda: find(world, m.StatePinned))
    (pinned,) = find(world, m.StatePinned)
    found = find(world, m.InstabilityDetected)[0]

    assert found.insured
    assert found.level is None
    assert pinned.step <= found.step - 28
    assert not pinned.is_written
    assert isinstance(world.trainer.orders[-1], m.GoOn)
    run_on(world, lambda: pinned.checkpoint in [one.id for one in world.state.checkpoints.catalogue])
    entry = next(one for one in world.state.checkpoints.catalogue if one.id == pinned.checkpoint)
    assert (entry.reason, entry.pinned, entry.step) == (m.CheckpointReason.PIN, True, pinned.step)
    steps = [one.step for one in world.state.checkpoints.catalogue]
    assert steps == sorted(steps), "the newest checkpoint is still the last one"
    assert "watches a rise" in q.autopilot_in_words(world.state)


@pytest.mark.parametrize(
    ("finding", "value", "run_of", "level", "insured"),
    [
        (Finding.NON_FINITE, math.inf, 3, None, False),
        (Finding.NON_FINITE, math.inf, 4, None, True),
        (Finding.NON_FINITE, math.nan, 1, m.Level.MAJOR, True),
        (Finding.SHIFT, 40.0, 5, None, False),
        (Finding.SHIFT, 60.0, 5, None, True),
    ],
)
def test_skipped_steps_and_a_norm_alone_are_watched_too(finding, value, run_of, level, insured):
    """Four steps in a row that are not finite, and a norm of a hundred times the usual. The third line is
    `detect.skip: false`: that update was made.
    """
    world = InsuredWorld(0, {})
    run_on(world, lambda: world.state.progress.step >= 20)
    verdict = Verdict(finding, Signal.GRAD_NORM, value, 0.5, 2.0, run_of)

    judged = q.judged(world.state, m.detected(verdict, step=21, epoch=1, batch=21), level)

    assert (judged.insured, judged.level) == (insured, level)


def test_a_rise_that_comes_down_is_released_and_nothing_was_done():
    """The comparison is made all the same: a small network may learn wrong batches away."""
    world = whole(CHANGED, high=12)

    assert not find(world, m.RolledBack)
    (released,) = find(world, m.PinReleased)
    assert "came down by itself" in released.why
    assert world.state.insurance.pins == ()
    assert world.state.run.phase is st.Phase.COMPLETED


def test_damaged_weights_are_gone_back_for_with_eight_batches_in_quarantine():
    """The batches before the rise, and not those after it; the run goes back to the pin."""
    world = InsuredWorld(0, {AT: 200}, DAMAGED)
    world.is_cured = lambda _: bool(find(world, m.RolledBack))
    world.run(6000)
    (pinned,), (back,), (put,) = find(world, m.StatePinned), find(world, m.RolledBack), find(world, m.QuarantineAdded)

    assert find(world, m.StatesCompared)[0].judgement is Judgement.WEIGHTS
    assert back.checkpoint == pinned.checkpoint
    assert put.batches == m.Batches(3, AT[1] - 20, AT[1] - 13)
    assert "the weights are to blame" in put.why
    assert world.state.run.phase is st.Phase.COMPLETED


def test_batches_that_do_damage_are_passed_over_as_a_whole_over_the_end_of_an_epoch():
    """All since the rise began, up to where it was compared; a quarter of the epoch at most."""
    world = whole(POISONED)
    put = [one.batches for one in find(world, m.QuarantineAdded)]

    assert find(world, m.StatesCompared)[0].judgement is Judgement.DATA
    assert put[0] == m.Batches(3, AT[1] - 20, AT[1] - 20 + LENGTH // 4 - 1)


def test_a_change_of_the_objective_is_left_alone_and_the_detector_learns_anew():
    """By a boundary order, so that a re-run repeats it."""
    world = whole(CHANGED)

    assert not find(world, m.RolledBack)
    assert find(world, m.StatesCompared)[0].judgement is Judgement.CHANGED
    acted = [one for one in find(world, m.OrderActed) if isinstance(one.order, m.LearnAnew)]
    assert len(acted) == 1
    assert world.state.insurance.pins == ()


@pytest.mark.parametrize("says", [DAMAGED, POISONED])
def test_twice_back_without_help_the_run_goes_on_and_says_how_to_go_back(says):
    """No halt for finite values. The pin stays, and one command returns there."""
    world = whole(says)
    (kept,) = find(world, m.HeldOnTo)

    assert len(find(world, m.RolledBack)) == 2
    assert world.state.run.phase is st.Phase.COMPLETED
    assert "2 returns did not help" in kept.why
    assert world.state.insurance.held_on_to.checkpoint == kept.checkpoint
    assert f"--to {kept.checkpoint}" in sentence(kept)
    assert f"--to {kept.checkpoint}" in q.autopilot_in_words(world.state)
    assert find(world, m.ConservativeModeEntered)
    assert f"--from RUN@{kept.checkpoint}" in q.kept_in_words(world.state)
    assert q.last_healthy(world.state) == "", "it has not halted"


def test_detect_halt_halts_where_two_returns_did_not_help_and_a_resumed_run_goes_on():
    """The operator who resumes it has said that it may."""
    world = InsuredWorld(0, {AT: 1000}, POISONED, detect_halt=True)
    run_on(world, lambda: world.state.run.phase is st.Phase.FROZEN)
    assert len(find(world, m.RolledBack)) == 2
    assert "2 returns did not help" in world.state.run.why
    assert q.last_healthy(world.state) == world.state.insurance.pins[0].checkpoint
    run_on(world, lambda: not world.state.trainer.alive)
    world.command(m.Resume())
    world.run(6000)

    assert world.state.run.phase is st.Phase.COMPLETED
    assert q.last_healthy(world.state) == ""


@pytest.mark.parametrize("halts", [True, False])
def test_a_halted_run_that_is_stopped_still_has_its_last_healthy_state(halts):
    """Its newest checkpoint may be of the fault. One that went on and is stopped has not halted."""
    world = InsuredWorld(0, {AT: 1000}, POISONED, detect_halt=halts)
    run_on(world, lambda: world.state.run.phase is st.Phase.FROZEN or world.state.insurance.held_on_to is not None)
    pinned = world.state.insurance.pins[0].checkpoint
    world.command(m.Stop())
    run_on(world, lambda: world.state.run.phase is st.Phase.STOPPED)

    assert q.last_healthy(world.state) == (pinned if halts else "")


# -- trials ------------------------------------------------------------------------------------------------------------


def trial(better: float) -> InsuredWorld:
    """An unclear rise; the branch that went back has this held-out loss, the one that went on 0.7."""
    returned = m.Measured(held=m.Losses(better, 0.7), begin=2.3)
    world = InsuredWorld(0, {AT: 1000}, UNCLEAR, returned)
    world.is_cured = lambda _: world.state.rollbacks.branches.living == 1
    world.run(6000)
    return world


def test_where_it_is_unclear_both_ways_are_tried_and_the_better_one_lives():
    """The one that went back trains up to the same batch without the suspected ones, and is better."""
    world = trial(0.3)
    before, went_on = find(world, m.StatePinned)
    (back,) = find(world, m.RolledBack)
    second = find(world, m.StatesCompared)[1]

    assert (before.role, went_on.role) == (m.PinRole.BEFORE, m.PinRole.WENT_ON)
    assert back.checkpoint == before.checkpoint
    entry = next(one for one in find(world, m.CheckpointCommitted) if one.id == went_on.checkpoint)
    assert (second.epoch, second.batch) == (entry.epoch, entry.batch)
    assert second.went_on is False
    assert {one.checkpoint for one in find(world, m.PinReleased)} == {before.checkpoint, went_on.checkpoint}
    assert world.state.run.phase is st.Phase.COMPLETED


def test_the_branch_that_went_on_lives_again_if_going_back_was_no_better():
    """A rollback like any other, forward: to the state that was kept when the run went back."""
    world = trial(0.7)
    first, again = find(world, m.RolledBack)
    went_on = find(world, m.StatePinned)[1]

    assert again.checkpoint == went_on.checkpoint
    assert again.step > first.step
    assert (again.parent, again.branch) == (0, 2)
    steps = [one.step for one in find(world, m.StepCompleted) if one.branch == 2]
    assert steps[0] == again.step + 1
    # Steps of the other way are no part of the run.
    reach = world.state.rollbacks.branches.reach()
    assert set(reach) == {0, 2}
    assert world.state.run.phase is st.Phase.COMPLETED
    assert world.state.insurance.pins == ()


def test_without_trials_an_unclear_rise_goes_on_with_its_pin():
    """`detect.trial: false`."""
    world = whole(UNCLEAR, detect_trial=False)

    assert not find(world, m.RolledBack)
    assert len(find(world, m.HeldOnTo)) == 1


# -- what may happen to a pin ------------------------------------------------------------------------------------------


def test_if_a_pin_cannot_be_written_an_older_one_on_disk_takes_its_place():
    """The newest checkpoint from before the rise."""
    world = InsuredWorld(0, {AT: 1000}, DAMAGED)
    world.fails_to_write = True
    run_on(world, lambda: len(find(world, m.StatePinned)) == 2)
    first, second = find(world, m.StatePinned)

    assert not first.is_written
    assert second.is_written
    assert second.step <= first.step
    assert [one.checkpoint for one in world.state.insurance.pins] == [second.checkpoint]


def test_a_low_disk_releases_the_pins_and_the_run_watches_no_more():
    """With an event that says why, and the checkpoint goes if nothing else keeps it."""
    world = InsuredWorld(0, {AT: 1000}, DAMAGED, keep_last=1)
    run_on(world, lambda: world.state.progress.step > 200)
    (pin,) = world.state.insurance.pins
    world.give(m.DiskMeasured(free=1, floor=10))

    released = find(world, m.PinReleased)[-1]
    assert (released.checkpoint, released.is_lost) == (pin.checkpoint, True)
    assert find(world, m.CheckpointDeletionBegun)[-1].id == pin.checkpoint
    assert world.state.insurance.machine.watch is None


def test_a_pin_is_outside_the_quota_and_no_retention_removes_it():
    """Even if it lies on a branch that was left."""
    world = whole(UNCLEAR, m.Measured(held=m.Losses(0.3, 0.7), begin=2.3), quota=25, keep_last=1)
    gone = {one.id: index for index, one in enumerate(world.events) if isinstance(one, m.CheckpointDeletionBegun)}

    for index, released in enumerate(world.events):
        if isinstance(released, m.PinReleased):
            assert gone.get(released.checkpoint, index + 1) > index


# -- kills -------------------------------------------------------------------------------------------------------------


def decisions(world: InsuredWorld) -> list[object]:
    """What the autopilot did, without the names of checkpoints."""
    told = []
    for one in world.events:
        match one:
            case m.StatesCompared():
                told.append((one.judgement, one.went_on))
            case m.RolledBack():
                told.append("back")
            case m.QuarantineAdded():
                told.append(one.batches)
            case m.HeldOnTo() | m.RunCompleted():
                told.append(type(one).__name__)
    return told


SCENARIOS = {
    "weights": (DAMAGED,),
    "data": (POISONED,),
    "changed": (CHANGED,),
    "returned": (UNCLEAR, m.Measured(held=m.Losses(0.3, 0.7), begin=2.3)),
    "went on": (UNCLEAR, m.Measured(held=m.Losses(0.7, 0.7), begin=2.3)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("dies", ["trainer", "daemon"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_moment_the_run_comes_to_the_same_decisions(name, dies, seed):
    """After every event from the pin on that is no step or snapshot, drawn."""
    calm = whole(*SCENARIOS[name])
    assert decisions(calm)[-1] == "RunCompleted"
    first = next(index for index, one in enumerate(calm.events) if isinstance(one, m.InstabilityDetected))
    of_interest = [
        index
        for index, one in enumerate(calm.events[first:], first)
        if not isinstance(one, m.StepCompleted | m.StepSkipped | m.SnapshotBegun | m.SnapshotTaken)
    ]
    draw = random.Random(seed)
    for at in draw.sample(of_interest, min(8, len(of_interest))):
        world = InsuredWorld(0, {AT: 1000}, *SCENARIOS[name])
        run_on(world, lambda w=world, n=at: len(w.events) > n, 6000)
        if dies == "trainer":
            world.crash_trainer()
        else:
            world.restart_daemon()
        world.run(9000)
        assert decisions(world) == decisions(calm), (at, kinds(world)[at - 3 : at + 1])


# -- the end of the run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "says"), [(59, DAMAGED), (33, DAMAGED), (59, UNCLEAR)])
def test_a_rise_shortly_before_the_end_is_compared_before_the_run_ends(left, says):
    """The watch would end after the run: the comparison is made sixteen batches before the end, and damage is gone back
    for. Both ways cannot be tried any more, so an unclear one keeps its state, and the run says which.
    """
    world = InsuredWorld(0, {(8, LENGTH - left): 200}, says)
    world.is_cured = lambda _: bool(find(world, m.RolledBack))
    world.run(6000)
    (begun,) = find(world, m.ComparisonBegun)

    assert (begun.epoch, begun.batch) == (8, LENGTH - 16)
    assert bool(find(world, m.RolledBack)) is (says is DAMAGED)
    assert len(find(world, m.HeldOnTo)) == (says is UNCLEAR)
    assert world.state.run.phase is st.Phase.COMPLETED
    assert world.state.insurance.pins == () or says is UNCLEAR


def test_a_rise_at_the_very_end_keeps_its_state_and_the_run_says_so():
    """It is too late to compare. The closing line has the command that begins there."""
    world = InsuredWorld(0, {(8, LENGTH - 10): 200}, DAMAGED)
    world.run(6000)
    (pinned,), (kept,) = find(world, m.StatePinned), find(world, m.HeldOnTo)

    assert not find(world, m.ComparisonBegun)
    assert kept.checkpoint == pinned.checkpoint
    assert "the run ended before it was explained" in kept.why
    assert f"--from RUN@{pinned.checkpoint}" in q.kept_in_words(world.state)
    assert world.state.run.phase is st.Phase.COMPLETED


def test_no_more_than_two_states_are_kept_and_the_oldest_is_released_with_an_event():
    """Three places that nothing explained, each passed in health: the first state goes when the third is kept."""
    world = InsuredWorld(
        0, {(epoch, 30): 150 if epoch == 6 else 40 for epoch in (2, 4, 6)}, UNCLEAR, detect_trial=False
    )
    world.run(9000)
    pinned, kept = find(world, m.StatePinned), find(world, m.HeldOnTo)
    gone = {one.checkpoint for one in find(world, m.PinReleased)}

    assert len({one.checkpoint for one in pinned}) == 3
    assert {one.checkpoint for one in pinned} - gone == {one.checkpoint for one in world.state.insurance.pins}
    assert len(world.state.insurance.pins) <= 2
    assert kept
