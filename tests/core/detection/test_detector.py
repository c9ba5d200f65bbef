"""Findings of the detector, and runs without a finding, drawn from a seed. The long form is under tests/study."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from msgspec.structs import replace

from tests.core.detection.suite import FAULTS, RUNS, faulty, healthy, judged, restarted
from tolariad.core.calc.detection.course import CourseState
from tolariad.core.calc.detection.detector import Detector, DetectorState
from tolariad.core.calc.detection.rules import NO_LIMIT, Action, Finding, Signal

KINDS = ("clean", "heavy")
BACK = (Action.ROLLBACK, Action.EMERGENCY)


def calm(steps=100, loss=0.5, norm=1.0, detector=None):
    """A detector that has seen so many equal steps."""
    detector = detector or Detector()
    for _ in range(steps):
        assert detector.judge(loss, norm) is None
    return detector


def delays(seed, kind, fault, wanted):
    """By run: after how many steps of the fault something was found that is `wanted`; a large number if nothing was."""
    found = []
    for number in range(RUNS):
        begin, run = faulty(random.Random(f"{seed} {kind} {number}"), kind, FAULTS[fault])
        found.append(min((t - begin for t, one in judged(run).items() if t >= begin and wanted(one)), default=10_000))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fault", "steps"), [("x5", 64), ("x10", 64), ("x20", 2)])
def test_a_lasting_jump_of_the_loss_is_gone_back_for(seed, kind, fault, steps):
    """A jump to five or ten times is found within 64 steps, a jump to twenty times within two.

    Heavy tails hide the latter from one run in fifty for a while: six of twenty are never so by chance.
    """
    measured = delays(seed, kind, fault, lambda one: one.action in BACK)

    assert sum(delay >= steps for delay in measured) <= (5 if (kind, fault) == ("heavy", "x20") else 0)
    assert max(measured) < 128


@pytest.mark.parametrize("kind", KINDS)
def test_a_drift_of_half_a_percent_is_gone_back_for_before_eightfold(kind):
    """No step is remarkable; 1.005 to the 417th is 8. The draws are fixed: of 4 000 others the latest took 413."""
    assert max(delays("drift", kind, "slow 0.5 %", lambda one: one.action in BACK)) < 417


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["one step x10", "NaN"])
def test_one_bad_step_is_skipped_and_nothing_else_follows(seed, kind, fault):
    """At once. A heavy-tailed run may have seen as much itself: of 1 200 such runs three let a tenfold step pass."""
    passed = 0
    for number in range(RUNS):
        begin, run = faulty(random.Random(f"{seed} once {kind} {number}"), kind, FAULTS[fault])
        found = judged(run)

        assert {one.action for one in found.values()} <= {Action.SKIP}
        passed += begin not in found
    assert passed <= (2 if (kind, fault) == ("heavy", "one step x10") else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_healthy_steps_are_hardly_ever_skipped_and_never_rolled_back(seed, kind):
    """100 000 steps of runs without a fault."""
    found = [
        one
        for number in range(50)
        for one in judged(healthy(random.Random(f"{seed} healthy {kind} {number}"), kind)).values()
    ]

    assert len([one for one in found if one.action is Action.SKIP]) <= 100
    assert [one for one in found if one.action in BACK] == []


@pytest.mark.parametrize("growth", [1.02, 1.05, 1.1, 1.2])
def test_a_divergence_from_the_start_is_gone_back_for_before_64_times_the_first_loss(seed, growth):
    """From one of the first twenty steps on, whatever is known by then."""
    for number in range(RUNS):
        draw = random.Random(f"{seed} {growth} {number}")
        begin = draw.randrange(20)
        losses = [2.3 * math.exp(draw.gauss(0.0, 0.05)) * growth ** max(0, t - begin) for t in range(400)]
        found = judged([(loss, 1.0) for loss in losses])

        assert losses[min(t for t, one in found.items() if one.action in BACK)] < 64 * 2.3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("signal", [Signal.LOSS, Signal.GRAD_NORM])
def test_the_first_step_is_judged_too_if_it_is_not_finite(value, signal):
    """No envelope is needed to know that."""
    verdict = Detector().judge(value, 1.0) if signal is Signal.LOSS else Detector().judge(1.0, value)

    assert verdict is not None
    assert (verdict.finding, verdict.signal, verdict.action) == (Finding.NON_FINITE, signal, Action.SKIP)
    assert (verdict.baseline, verdict.limit) == (0.0, NO_LIMIT)


def test_the_ninth_step_in_a_row_that_is_not_finite_is_gone_back_for():
    """One healthy step begins the row anew; a finding that nobody acts on comes again after nine."""
    detector = calm()
    first = [detector.judge(math.nan, 1.0).finding for _ in range(8)]
    detector.judge(0.5, 1.0)
    again = [detector.judge(0.5, math.inf).finding for _ in range(18)]

    assert first == [Finding.NON_FINITE] * 8
    assert again == [*[Finding.NON_FINITE] * 8, Finding.SUSTAINED] * 2


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [*FAULTS, None])
def test_a_restart_before_or_amid_any_fault_changes_no_verdict(seed, kind, fault):
    """Neither what is found nor when, nor what is not; through msgpack, at random steps and around the fault."""
    for number in range(4):
        draw = random.Random(f"{seed} restart {kind} {number}")
        begin, run = faulty(draw, kind, FAULTS[fault]) if fault else (1300, list(healthy(draw, kind)))
        restarts = {begin, begin + 1, begin + draw.randint(2, 60), *draw.sample(range(len(run)), 20)}

        assert judged(run, restarts=restarts) == judged(run)


@pytest.mark.parametrize("seeded", range(4))
def test_a_detector_restored_at_every_step_judges_equally_whatever_comes(seed, seeded):
    """Values of any size and sign, zeros, missing values, changing rates: verdict and state are equal to the bit."""
    draw = random.Random(f"{seed} anything {seeded}")
    whole, cut = Detector(unit=1.0), Detector(unit=1.0)
    for t in range(600):
        loss = draw.choice([math.exp(draw.gauss(0.0, 0.3))] * 40 + [0.0, math.nan, 30.0, 1e300, 1e-300])
        if seeded >= 2 and t > 300:
            loss -= 1.5
        norm = draw.choice([math.exp(draw.gauss(0.0, 0.5))] * 20 + [0.0, -1.0, 900.0, math.inf])
        rate = 0.1 if t % 200 < 100 else 0.01
        cut = Detector(state=restarted(cut).state(), unit=1.0)
        assert cut.judge(loss, norm, rate) == whole.judge(loss, norm, rate)
        assert cut.state() == whole.state()


def test_a_state_is_a_value_that_later_steps_leave_alone():
    """A checkpoint is encoded while training goes on."""
    detector = calm()
    state = detector.state()
    held = msgspec.msgpack.encode(state)
    for t in range(50):
        detector.judge(1.0 + 0.01 * (t % 5), 2.0)

    assert msgspec.msgpack.encode(state) == held
    assert state == msgspec.msgpack.decode(held, type=DetectorState)
    assert detector.state() != state


def test_a_step_that_is_not_finite_leaves_nothing_in_the_state():
    """Only the count of the row, until the next healthy step."""
    detector = calm()
    before = detector.state()
    detector.judge(math.nan, math.nan)

    assert replace(detector.state(), row=0, not_finite=0) == before


def test_two_losses_in_a_row_far_above_all_others_are_an_explosion():
    """One alone is a spike, whatever it says; one in between that is less begins the count anew."""
    detector = calm(600)

    found = [detector.judge(loss, 1.0) for loss in (7.9, 7.0, 7.9, 7.9)]

    assert [one.finding for one in found] == [Finding.SPIKE] * 3 + [Finding.EXPLOSION]
    assert found[3].action is Action.EMERGENCY
    assert found[3].baseline == pytest.approx(0.5)
    assert found[3].limit == found[3].explosion == pytest.approx(7.5)


def test_where_single_losses_leap_often_an_explosion_takes_three(seed):
    """Of batches with ten times the loss, one in twenty, two in a row come every few hundred steps."""
    draw = random.Random(seed)
    detector = Detector()
    for _ in range(2000):
        detector.judge(math.exp(draw.gauss(0.0, 0.05)) * (10.0 if draw.random() < 0.05 else 1.0), 1.0)

    assert [detector.judge(200.0, 1.0).finding for _ in range(3)] == [Finding.SPIKE] * 2 + [Finding.EXPLOSION]


def test_a_burst_is_skipped_for_four_steps_and_is_part_of_the_envelope_then():
    """Nothing is called unusual for good: the fifth is healthy, and so is one that comes a thousand steps later."""
    detector = calm(400)

    assert [one and one.finding for one in (detector.judge(2.0, 1.0) for _ in range(8))] == [Finding.SPIKE] * 4 + [
        None
    ] * 4
    calm(1000, detector=detector)
    assert detector.judge(2.0, 1.0) is None


def test_one_absurd_loss_does_not_blind_for_those_that_follow():
    """The absurd loss raises the envelope a little: a loss of a thousand times is still a spike, two in a row an
    explosion.
    """
    detector = calm(400)
    assert detector.judge(1e30, 1.0).finding is Finding.SPIKE
    calm(20, detector=detector)

    found = [detector.judge(5000.0, 1.0).finding for _ in range(3)]
    assert found[0] is Finding.SPIKE
    assert Finding.EXPLOSION in found


def test_a_rise_that_nobody_goes_back_for_is_the_level_from_then_on():
    """The detector asks for a rollback once. After that the new level is healthy, and it finds a second rise like the
    first.
    """
    detector = calm(600)

    found = [detector.judge(3.0, 1.0) for _ in range(400)]
    again = [detector.judge(100.0, 1.0) for _ in range(40)]

    assert [one.finding for one in found if one and one.action in BACK] == [Finding.SUSTAINED]
    assert found[30:] == [None] * 370
    assert any(one and one.action in BACK for one in again)


def test_a_rise_that_is_less_is_recorded_once():
    """Threefold: a line, and nothing is skipped for good, gone back for, or said again."""
    detector = calm(600)

    found = [one for one in (detector.judge(1.5, 1.0) for _ in range(600)) if one]

    (rise,) = [one for one in found if one.finding is Finding.RISE]
    assert {one.finding for one in found} == {Finding.SPIKE, Finding.RISE}
    assert rise.action is Action.RECORD
    assert (rise.value, rise.baseline, rise.limit) == (*map(pytest.approx, (1.5, 0.5, 1.25)),)
    assert 17 <= rise.run_of <= 32


def test_a_spike_of_the_gradient_is_found_if_the_loss_says_nothing():
    """The signals are judged apart, and the verdict says which it was."""
    verdict = calm(norm=2.0).judge(0.5, 2000.0)

    assert (verdict.signal, verdict.finding, verdict.value) == (Signal.GRAD_NORM, Finding.SPIKE, 2000.0)


def test_gradients_that_stay_high_while_the_loss_stays_are_the_level_now():
    """Learning sets in after a plateau: four batches are skipped, then the update is made, and there is no rollback."""
    detector = calm(loss=2.3, norm=0.09)

    found = [detector.judge(2.29, 2.0) for _ in range(200)]

    assert [(one.finding, one.action) for one in found[:4]] == [(Finding.SPIKE, Action.SKIP)] * 4
    assert (found[4].finding, found[4].signal, found[4].action) == (Finding.SHIFT, Signal.GRAD_NORM, Action.RECORD)
    assert (found[4].value, found[4].run_of, found[4].baseline) == (2.0, 5, pytest.approx(0.09))
    assert found[5:] == [None] * 195
    assert detector.judge(2.29, 900.0).finding is Finding.SPIKE


def test_a_shift_of_the_gradients_does_not_hide_a_loss_that_rises_with_them():
    """With a loss that is too high as well it is the loss that counts."""
    found = [one for detector in [calm(600)] for _ in range(40) if (one := detector.judge(4.0, 50.0))]

    assert {one.signal for one in found[:4]} == {Signal.LOSS}
    assert Finding.SUSTAINED in {one.finding for one in found}


def descended(steps=1500, rate=0.1):
    """A run that has come down from 2.3 to 0.1, at one rate but for its last third."""
    detector = Detector()
    for t in range(steps):
        detector.judge(0.1 + 2.2 * math.exp(-t / 100.0), 1.0, 0.1 if t < 1000 else rate)
    return detector


@pytest.mark.parametrize(
    ("norm", "rate", "goes_back"), [(1.0, 0.01, True), (3.0, 0.01, False), (1.0, 0.1, False), (1.0, 0.3, True)]
)
def test_a_rise_that_gradients_or_a_restarted_rate_explain_is_recorded(norm, rate, goes_back):
    """Sevenfold, below what the run began with; a rate that it has never had before explains nothing."""
    detector = descended(rate=0.01)
    found = {one.finding for _ in range(60) if (one := detector.judge(0.7, norm, rate))}

    assert (Finding.SUSTAINED in found) == goes_back
    assert goes_back or Finding.RISE in found


def test_a_rise_with_gradients_that_died_is_gone_back_for_sooner():
    """Threefold, and norms of exactly zero, or of a tenth; with norms as they were it is recorded."""
    for norm, goes_back in ((0.0, True), (0.1, True), (1.0, False)):
        detector = calm(600)
        found = {one.finding for _ in range(60) if (one := detector.judge(1.5, norm))}
        assert (Finding.SUSTAINED in found) == goes_back


def test_swings_that_the_run_came_back_from_are_no_reason_to_go_back():
    """The loss is five times as high for a hundred steps. Only the first such swing asks for a rollback."""
    detector, found = calm(600), []
    for _ in range(4):
        found.append({one.finding for _ in range(100) if (one := detector.judge(2.5, 1.0))})
        calm(400, detector=detector)

    assert Finding.SUSTAINED in found[0]
    assert all(Finding.SUSTAINED not in one for one in found[1:])


@pytest.mark.parametrize("unit", [None, 0.5])
def test_losses_of_either_sign_are_gone_back_for_only_if_the_task_names_their_unit(seed, unit):
    """A rise of 8, in noise of 0.05: without a unit it is skipped and recorded, and nothing else."""
    draw = random.Random(seed)
    detector = Detector(unit=unit)
    for t in range(2000):
        found = detector.judge(3.0 * math.exp(-t / 200.0) - 2.0 + draw.gauss(0.0, 0.05), 1.0)
        assert found is None or found.action is Action.SKIP

    found = [one for _ in range(60) if (one := detector.judge(6.0 + draw.gauss(0.0, 0.05), 1.0))]

    assert detector.state().course.losses.scale.value == "linear"
    assert any(one.action in BACK for one in found) == (unit is not None)
    assert {Finding.SPIKE, Finding.RISE} & {one.finding for one in found}


def test_a_gradient_norm_that_was_not_measured_enters_nothing():
    """`grad_norm.every` leaves steps without one."""
    assert calm(norm=-1.0).state().norms.count == 0


def test_a_loss_learnt_by_heart_may_rise_a_hundredfold_and_one_that_comes_back_is_found(seed):
    """No loss below a tenth of the first losses is too high. Above it the usual rules apply, also after a restart."""
    draw = random.Random(seed)
    first = Detector()
    for t in range(1200):
        assert first.judge(2.0 * math.exp(-t / 100) + 1e-3 * math.exp(draw.gauss(0.0, 0.5)), 1.0) is None
    detector = restarted(first)

    assert [detector.judge(0.05 * math.exp(draw.gauss(0.0, 0.2)), 1.0) for _ in range(100)] == [None] * 100
    for _ in range(400):
        assert detector.judge(1e-3 * math.exp(draw.gauss(0.0, 0.5)), 1.0) is None
    assert Finding.EXPLOSION in [detector.judge(20.0, 1.0).finding for _ in range(3)]


def test_a_floor_is_learnt_once_or_handed_on_and_a_loss_that_is_not_positive_has_none():
    """A tenth of the median of steps 33 to 64; a run that begins with another's weights keeps that one's."""
    detector = calm(64, 2.0)
    calm(300, 0.01, detector=detector)
    assert detector.state().course.floor == pytest.approx(0.2)

    child = Detector(state=DetectorState(course=CourseState(floor=0.23)))
    draw = random.Random(1)
    for t in range(500):
        assert child.judge(5e-4 * math.exp(draw.gauss(0.0, 0.4)) if t % 100 else 0.1, 1.0) is None
    assert child.state().course.floor == 0.23

    below = calm(200, -3.0)
    assert below.state().course.floor == 0.0
    assert below.judge(-0.5, 1.0) is not None


def test_an_absurd_first_loss_does_not_blind_the_run():
    """A loss of a tenth of 1e5 can be too high; a hundred times the level is."""
    detector = calm(64, 1e5)
    for t in range(2000):
        assert detector.judge(1.0 + 1e5 * math.exp(-t / 20.0), 1.0) is None

    assert detector.judge(150.0, 1.0).finding is Finding.SPIKE


def test_a_loss_of_exactly_zero_says_nothing_of_how_large_losses_are(seed):
    """Most batches keep a margin and have a loss of zero. Zeros are healthy and do not enter the statistics of the
    others.
    """
    draw = random.Random(seed)
    detector = Detector()
    losses = (0.0 if draw.random() < 0.7 else 0.05 * math.exp(draw.gauss(0.0, 0.5)) for _ in range(2000))
    found = [detector.judge(loss, 1.0) for loss in losses]

    assert [one for one in found if one is not None and one.action is not Action.SKIP] == []
    assert sum(one is not None for one in found) <= 2
    assert detector.state().course.losses.scale.value == "log"
    assert detector.judge(50.0, 1.0).finding is Finding.SPIKE


@pytest.mark.parametrize(("share", "times"), [(0.2, 20.0), (0.05, 5.0), (0.01, 10.0)])
def test_batches_of_a_second_kind_are_learnt_too(seed, share, times):
    """After the first three, hardly one of them is skipped. Nothing acts on them; a rise may be noted once."""
    draw, skipped, noted, seen = random.Random(f"{seed} {share}"), 0, 0, 0
    detector = Detector()
    for t in range(4000):
        is_other = draw.random() < share
        level = (1.0 + 2.0 * math.exp(-t / 500.0)) * math.exp(draw.gauss(0.0, 0.05))
        found = detector.judge(level * (times if is_other else 1.0), 1.0)
        assert found is None or found.action in (Action.SKIP, Action.RECORD)
        noted += found is not None and found.action is Action.RECORD
        seen += is_other
        skipped += is_other and found is not None

    assert skipped <= 3 + seen / 20
    assert noted <= 1
