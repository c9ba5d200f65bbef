"""What the detector finds and what it leaves alone, over runs drawn from a seed."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from tests.core.detection.suite import FAULTS, RUNS, faulty, healthy, judged
from tolariad.core.detection import NO_LIMIT, Action, Detector, DetectorState, Finding, Signal, WindowState
from tolariad.core.detection.rules import Rules

KINDS = ("clean", "heavy")


def verdicts(run, detector=None):
    """The verdicts on a run, by step."""
    judge = (detector or Detector()).judge
    return {t: verdict for t, (loss, norm) in enumerate(run) if (verdict := judge(loss, norm)) is not None}


def found_within(seed, kind, fault, steps):
    """In how many of the runs something was found within `steps` of the fault."""
    found = 0
    for number in range(RUNS):
        begin, run = faulty(random.Random(f"{seed} {kind} {number}"), kind, FAULTS[fault])
        found += any(begin <= t < begin + steps for t in verdicts(run))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["x2", "x5", "x20", "one step x3", "NaN"])
def test_a_sudden_fault_is_found_within_fifty_steps_in_every_run(seed, kind, fault):
    """Doubled, five-fold, twenty-fold, one step of three, one that is no number."""
    assert found_within(seed, kind, fault, 50) == RUNS


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_divergence_is_found_within_150_steps(seed, kind):
    """Half a percent a step: no single step is remarkable."""
    assert found_within(seed, kind, "slow 0.5 %", 150) >= 18


@pytest.mark.parametrize(("kind", "a_thousand"), [("clean", 0.2), ("heavy", 1.5)])
def test_healthy_steps_are_hardly_ever_skipped_and_never_rolled_back(seed, kind, a_thousand):
    """100 000 steps of runs without a fault."""
    found = [
        verdict
        for number in range(50)
        for verdict in verdicts(healthy(random.Random(f"{seed} healthy {kind} {number}"), kind)).values()
    ]

    assert sum(one.action is Action.SKIP for one in found) <= a_thousand * 100
    assert [one for one in found if one.action is not Action.SKIP] == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_that_is_no_number_leaves_no_trace(seed, kind):
    """Not finite is found once; of the 200 steps after it none is rolled back, and every limit is as without it."""
    for number in range(RUNS):
        begin, run = faulty(random.Random(f"{seed} nan {kind} {number}"), kind, FAULTS["NaN"])
        found = verdicts(run)
        without = [one for t, one in enumerate(run) if t != begin]
        # A spike right behind it is the second unhealthy step in a row there, and the first one here.
        after = {t - 1: replace(one, run_of=0) for t, one in found.items() if t > begin}

        assert found[begin].finding is Finding.NON_FINITE
        assert all(found[t].action is Action.SKIP for t in found if begin < t <= begin + 200)
        assert after == {t: replace(one, run_of=0) for t, one in verdicts(without).items() if t >= begin}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("signal", [Signal.LOSS, Signal.GRAD_NORM])
def test_the_first_step_is_judged_too_where_it_is_not_finite(value, signal):
    """No window is needed to know that."""
    verdict = Detector().judge(value, 1.0) if signal is Signal.LOSS else Detector().judge(1.0, value)

    assert verdict is not None
    assert (verdict.finding, verdict.signal, verdict.action) == (Finding.NON_FINITE, signal, Action.SKIP)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [*FAULTS, None])
def test_a_restart_before_or_amid_any_fault_changes_no_verdict(seed, kind, fault):
    """Neither what is found nor when, nor what is not; a detector that had forgotten would be blind for 64 steps."""
    for number in range(4):
        draw = random.Random(f"{seed} restart {kind} {number}")
        begin, run = faulty(draw, kind, FAULTS[fault]) if fault else (1300, list(healthy(draw, kind)))
        restarts = {begin, begin + 1, begin + draw.randint(2, 60)}

        assert judged(run, restarts=restarts) == judged(run)


def test_median_and_spread_are_computed_anew_every_eighth_healthy_step_and_averages_with_each(seed):
    """Neither sooner, which would cost, nor later; a skipped step is none of the eight."""
    draw = random.Random(seed)
    detector, limits = Detector(), []
    for t in range(400):
        before = detector.state()
        if t >= 100 and t % 5 == 4:
            assert detector.judge(math.nan if t % 2 else 900.0, 1.0) is not None
            assert replace(detector.state(), in_a_row=0) == replace(before, in_a_row=0), "it entered a window"
            continue
        detector.judge(math.exp(draw.gauss(0.0, 0.1)), 1.0)
        after = detector.state()
        limits.append((after.accepted, detector._loss.limit))
        assert after.fast != before.fast
    changed = [at for (_, one), (at, other) in pairwise(limits) if one != other]

    assert all(at % 8 == 0 for at in changed), changed
    assert len(changed) >= 20


def test_a_state_is_a_value_that_later_steps_leave_alone():
    """A checkpoint is encoded while training goes on."""
    detector = Detector()
    for t in range(100):
        detector.judge(1.0 + 0.01 * (t % 7), 1.0)
    state = detector.state()
    held = msgspec.msgpack.encode(state)
    for t in range(50):
        detector.judge(1.0 + 0.01 * (t % 5), 2.0)

    assert msgspec.msgpack.encode(state) == held
    assert hash(state) == hash(msgspec.msgpack.decode(held, type=DetectorState))
    assert detector.state() != state


def test_before_anything_is_usual_a_finding_claims_nothing():
    """No median and no limit of a window that is not full."""
    early = Detector().judge(math.nan, 1.0)
    late = Detector()
    for _ in range(100):
        late.judge(0.5, 1.0)

    assert (early.baseline, early.limit) == (0.0, NO_LIMIT)
    assert late.judge(math.nan, 1.0).baseline == pytest.approx(0.5)


def test_a_detector_carries_its_memory_over_a_restart(seed):
    """Through msgpack, in the middle of anything: every later verdict is the same, to the bit."""
    begin, run = faulty(random.Random(seed), "heavy", FAULTS["x5"])
    for cut in (0, 5, 63, 64, 130, begin + 3):
        whole, first = Detector(), Detector()
        expected = verdicts(run, whole)
        verdicts(run[:cut], first)
        stored = msgspec.msgpack.encode(first.state())
        second = Detector(state=msgspec.msgpack.decode(stored, type=DetectorState))
        found = {t + cut: one for t, one in verdicts(run[cut:], second).items()}

        assert found == {t: one for t, one in expected.items() if t >= cut}
        assert second.state() == whole.state()


def test_a_loss_fifteen_times_the_median_is_an_emergency_unless_it_is_one_batch():
    """One batch alone is skipped, whatever it says; the second in a row shows that it is the weights."""
    detector = Detector()
    for _ in range(100):
        assert detector.judge(0.5, 1.0) is None

    first, spike, explosion = detector.judge(7.6, 1.0), detector.judge(7.0, 1.0), detector.judge(7.6, 1.0)

    assert (first.finding, first.action) == (Finding.SPIKE, Action.SKIP)
    assert (spike.finding, spike.action) == (Finding.SPIKE, Action.SKIP)
    assert (explosion.finding, explosion.action) == (Finding.EXPLOSION, Action.EMERGENCY)
    assert explosion.baseline == pytest.approx(0.5)


def test_spikes_without_end_are_a_new_place_and_call_for_rollback_once():
    """32 are skipped; then a rollback is called for, and if nobody acts, the windows begin again."""
    detector = Detector()
    for _ in range(100):
        detector.judge(0.5, 1.0)

    found = [detector.judge(1.5, 1.0) for _ in range(200)]

    assert [one.finding for one in found[:33]] == [Finding.SPIKE] * 32 + [Finding.SUSTAINED]
    assert found[33:] == [None] * 167


def test_a_spike_of_the_gradient_is_found_where_the_loss_says_nothing():
    """The signals are judged apart, and the verdict says which it was."""
    detector = Detector()
    for _ in range(100):
        detector.judge(0.5, 2.0)

    verdict = detector.judge(0.5, 2000.0)

    assert (verdict.signal, verdict.finding, verdict.value) == (Signal.GRAD_NORM, Finding.SPIKE, 2000.0)


def test_gradients_that_stay_high_while_the_loss_stays_are_the_level_now():
    """Learning that sets in behind a plateau: a few batches are skipped, then the update is made, and nobody goes back."""
    detector = Detector()
    for _ in range(100):
        detector.judge(2.3, 0.09)

    found = [detector.judge(2.29, 2.0) for _ in range(200)]

    assert [(one.finding, one.action) for one in found[:4]] == [(Finding.SPIKE, Action.SKIP)] * 4
    assert (found[4].finding, found[4].signal, found[4].action) == (Finding.SHIFT, Signal.GRAD_NORM, Action.RECORD)
    assert (found[4].value, found[4].run_of, found[4].baseline) == (2.0, 5, pytest.approx(0.09))
    assert found[5:] == [None] * 195
    assert detector.judge(2.29, 200.0).finding is Finding.SPIKE


def test_a_shift_of_the_gradients_does_not_hide_a_loss_that_rises_with_them():
    """Where the loss is too high as well it is the loss that counts, to the 33rd in a row; the step of a shift is judged, too."""
    detector = Detector()
    for _ in range(100):
        detector.judge(0.5, 1.0)

    found = [detector.judge(1.5, 50.0) for _ in range(33)]

    assert [one.finding for one in found] == [Finding.SPIKE] * 32 + [Finding.SUSTAINED]
    assert {one.signal for one in found} == {Signal.LOSS}


def test_a_detector_made_amid_a_shift_goes_on_with_it():
    """The state is everything: steps skipped so far, and that gradients are learnt anew."""
    detector = Detector()
    for _ in range(100):
        detector.judge(0.5, 1.0)
    for norm in [30.0] * 40:
        twin = Detector(state=detector.state())
        assert twin.judge(0.5, norm) == detector.judge(0.5, norm)
        assert twin.state() == detector.state()


def test_losses_below_zero_are_judged_on_their_own_scale(seed):
    """A likelihood may go below zero; a rise is still a rise, and logarithms are no more taken."""
    draw = random.Random(seed)
    detector = Detector()
    for t in range(400):
        assert detector.judge(3.0 - t * 0.01 + draw.gauss(0.0, 0.05), 1.0) is None

    verdict = detector.judge(9.0, 1.0)

    assert verdict.finding in (Finding.SPIKE, Finding.EXPLOSION)
    assert detector.state().loss.scale.value == "linear"


def test_a_gradient_norm_that_was_not_measured_enters_nothing():
    """`grad_norm.every` leaves steps without one."""
    detector = Detector()
    for _ in range(100):
        assert detector.judge(1.0, 0.0) is None

    assert detector.state().grad_norm.values == ()


def test_a_loss_learnt_by_heart_may_rise_a_hundredfold_and_one_that_comes_back_is_found(seed):
    """Under a tenth of what the run began with nothing is too high; above it everything is as it was, over a restart too."""
    draw = random.Random(seed)
    first = Detector()
    for t in range(1200):
        assert first.judge(2.0 * math.exp(-t / 100) + 1e-5 * math.exp(draw.gauss(0.0, 0.5)), 1.0) is None
    detector = Detector(state=msgspec.msgpack.decode(msgspec.msgpack.encode(first.state()), type=DetectorState))

    assert [detector.judge(0.05 * math.exp(draw.gauss(0.0, 0.2)), 1.0) for _ in range(100)] == [None] * 100
    for _ in range(400):
        assert detector.judge(1e-5 * math.exp(draw.gauss(0.0, 0.5)), 1.0) is None
    assert [detector.judge(1.5, 1.0).finding for _ in range(2)] == [Finding.SPIKE, Finding.EXPLOSION]


def jumping(seed):
    """Of a classifier of ten that knows its data by heart: losses decades apart, and one jump that takes forty steps to heal."""
    draw = random.Random(seed)
    usual = [5e-4 * math.exp(draw.uniform(-3.0, 3.0)) for _ in range(1800)]
    return [loss + (0.17 * math.exp((1200 - t) / 40) if t >= 1200 else 0.0) for t, loss in enumerate(usual)]


@pytest.mark.parametrize("inherited", [False, True])
def test_a_jump_of_a_loss_learnt_by_heart_is_nothing_to_go_back_for(seed, inherited):
    """From the beginning, and in a run that begins with such weights and knows what their loss began with; without knowing it
    is gone back for.
    """
    learning = [] if inherited else [2.3 * math.exp(-t / 60) + 5e-4 for t in range(600)]
    known = DetectorState(loss=WindowState(floor=0.23)) if inherited else None
    losses = learning + jumping(seed)
    detector, ignorant = Detector(state=known), Detector(Rules(floor=0.0))

    assert [detector.judge(loss, 1.0) for loss in losses] == [None] * len(losses)
    assert Finding.DIVERGENCE in {found.finding for loss in losses if (found := ignorant.judge(loss, 1.0))}


def test_a_floor_is_learnt_once_and_a_loss_that_is_not_positive_has_none():
    """Neither a long run nor a new beginning behind spikes moves it."""
    detector = Detector()
    for _ in range(64):
        detector.judge(2.0, 1.0)
    for _ in range(300):
        detector.judge(0.01, 1.0)
    assert detector.state().loss.floor == pytest.approx(0.2)
    assert detector.state().grad_norm.floor == 0.0

    below = Detector()
    for _ in range(200):
        assert below.judge(-3.0, 1.0) is None
    assert below.state().loss.floor == 0.0
    assert below.judge(-0.5, 1.0) is not None


def test_a_loss_of_exactly_zero_says_nothing_of_how_large_losses_are(seed):
    """A margin that most batches keep: zero is healthy and enters nothing, and what is left stays as usual as it was."""
    draw = random.Random(seed)
    detector = Detector()
    losses = (0.0 if draw.random() < 0.7 else 0.05 * math.exp(draw.gauss(0.0, 0.5)) for _ in range(2000))
    found = [detector.judge(loss, 1.0) for loss in losses]

    assert [one for one in found if one is not None and one.action is not Action.SKIP] == []
    assert sum(one is not None for one in found) <= 2
    assert detector.state().loss.scale.value == "log"
    assert detector.judge(50.0, 1.0).finding is Finding.SPIKE


def test_what_is_no_worse_than_an_untrained_network_has_not_exploded():
    """Fifteen times a loss that is nearly nothing is little: two such batches are skipped; beyond the beginning it is grave."""
    detector = Detector()
    for t in range(600):
        assert detector.judge(2.3 * math.exp(-t / 60.0), 1.0) is None

    little = [detector.judge(loss, 1.0).finding for loss in (0.9, 1.1)]
    assert detector.judge(0.001, 1.0) is None

    assert little == [Finding.SPIKE, Finding.SPIKE]
    assert [detector.judge(3.0, 1.0).finding for _ in range(2)] == [Finding.SPIKE, Finding.EXPLOSION]


def test_however_far_losses_lie_apart_many_times_the_beginning_has_exploded(seed):
    """Learnt by heart, one batch's loss is a thousand times another's: their spread would put the limit out of all reach."""
    draw = random.Random(seed)
    detector = Detector()
    for _ in range(64):
        detector.judge(2.0 * math.exp(draw.gauss(0.0, 0.05)), 1.0)
    for _ in range(400):
        assert detector.judge(1e-4 * math.exp(draw.uniform(-4.0, 4.0)), 1.0) is None
    found = [detector.judge(loss, 1.0) for loss in (50.0, 50.0)]

    assert [one.finding for one in found] == [Finding.SPIKE, Finding.EXPLOSION]
    assert 15.0 < found[0].explosion < 50.0


def test_two_spikes_of_a_loss_around_zero_are_no_explosion(seed):
    """A policy's gain: its median is next to zero, so its spread says what is large."""
    draw = random.Random(seed)
    detector = Detector()
    for _ in range(300):
        detector.judge(draw.gauss(0.0, 0.05), 1.0)

    assert [detector.judge(loss, 1.0).finding for loss in (1.0, 1.0)] == [Finding.SPIKE, Finding.SPIKE]
    assert [detector.judge(loss, 1.0).finding for loss in (20.0, 20.0)] == [Finding.EXPLOSION, Finding.EXPLOSION]


def test_batches_of_a_second_kind_are_learnt_too(seed):
    """One in five is of a task whose loss is twenty times as large, from the start: to skip them would be never to learn it."""
    draw = random.Random(seed)
    detector = Detector()
    found = []
    for t in range(3000):
        level = (1.0 + 2.0 * math.exp(-t / 500.0)) * math.exp(draw.gauss(0.0, 0.05))
        found.append(detector.judge(level * (20.0 if draw.random() < 0.2 else 1.0), 1.0))

    assert [one for one in found if one is not None] == []
    assert detector.judge(500.0, 1.0).finding is Finding.SPIKE
