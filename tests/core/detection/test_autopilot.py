"""The machine of the autopilot: every row of its decision table, and what it never does."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from msgspec.structs import replace

from tolariad.core.calc.detection import autopilot as ap
from tolariad.core.calc.detection.comparison import Comparison, Losses
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.calc.detection.watch import HORIZON

RISE = Verdict(Finding.SUSTAINED, Signal.LOSS, 3.0, 0.5, 2.0, 24)
SICK = Verdict(Finding.SUSTAINED, Signal.LOSS, math.nan, 0.5, 2.0, 9)
DAMAGED = Comparison(Losses(2.2, 0.1), Losses(2.3, 0.2), 2.3)
POISONED = Comparison(Losses(2.3, 9.0), Losses(2.2, 0.2), 2.3)
CHANGED = Comparison(Losses(0.6, 0.7), Losses(0.2, 0.2), 2.3)
SCALED = Verdict(Finding.SHIFT, Signal.GRAD_NORM, 500.0, 0.5, 2.0, 5)
BURST = Verdict(Finding.NON_FINITE, Signal.GRAD_NORM, math.inf, 0.5, 2.0, 4)
UNMEASURED = Comparison(None, None, 2.3)
UNCLEAR = Comparison(Losses(0.6, 0.5), Losses(0.7, 0.2), 2.3)
POLICY = ap.Policy()


def found(state=None, verdict=RISE, step=1000, began=20, policy=POLICY):
    """A finding in the run's only epoch, whose steps are its batches."""
    at = ap.Found(step=step, batch=(1, step), first=(1, step - began), began=began)
    return ap.found(state or ap.Autopilot(), verdict, at, policy)


def watched(state, losses, step):
    """Follow the losses until something is done; return the state, the acts, and the step."""
    for at, loss in enumerate(losses, step):
        state, acts = ap.stepped(state, (1, at), loss)
        if acts:
            return state, acts, at
    return state, (), step + len(losses) - 1


def compared(comparison, policy=POLICY):
    """The answer to a rise that stays, sixteen batches after the end of the watch."""
    state, _ = found(policy=policy)
    state, acts, at = watched(state, [3.0] * 500, 1000)
    assert acts == (ap.Compare(),)
    state, acts, at = watched(state, [3.0] * ap.COMPARED, at + 1)
    assert acts == ()
    return *ap.compared(state, comparison, (1, at), policy), at


def test_a_finite_rise_pins_the_state_from_before_it_and_nothing_else():
    """Eight updates before the rise began. A second finding in the watch changes nothing."""
    state, acts = found()

    assert acts == (ap.PinState(972),)
    assert found(state, step=1010)[1] == ()


def test_a_rise_that_comes_down_is_compared_and_released():
    """And the machine is as at first. It is gone back for only if the comparison shows damage."""
    state, acts, at = watched(found()[0], [3.0] * 20 + [0.5] * 60, 1000)
    assert acts == (ap.Compare(),)

    for comparison in (CHANGED, UNMEASURED):
        after, (released,) = ap.compared(state, comparison, (1, at), POLICY)
        assert (after, released) == (ap.Autopilot(), ap.Release("the loss came down by itself"))
    for comparison in (DAMAGED, POISONED):
        assert isinstance(ap.compared(state, comparison, (1, at), POLICY)[1][0], ap.GoBack)


@pytest.mark.parametrize("is_stage", [False, True])
def test_a_rise_that_is_explained_on_the_way_to_a_place_does_not_end_its_count(is_stage):
    """A fault that comes at a step is met again after each return. A rise before it, or a stage that the code announces
    there again, must not let the run go back for ever.
    """
    backs, state = 0, ap.Autopilot()
    for _ in range(5):
        state, acts = found(state, step=900)
        if any(isinstance(one, ap.GoOn) for one in acts):
            break
        if is_stage:
            state = ap.settled(state, begins_anew=True)
        else:
            state, _, at = watched(state, [3.0] * 20 + [0.2] * 60, 900)
            state, _ = ap.compared(state, CHANGED, (1, at), POLICY)
        state, _, at = watched(found(state, step=1000)[0], [3.0] * 500, 1000)
        state, acts = ap.compared(state, POISONED, (1, at), POLICY)
        backs += any(isinstance(one, ap.GoBack) for one in acts)

    assert backs == 2
    # Past the place the count ends, whatever the level is by then.
    state = ap.settled(replace(state, given_up=False, watch=None), begins_anew=True)
    assert watched(state, [9.0] * 500, 2000)[0] == ap.Autopilot()


@pytest.mark.parametrize(
    ("newest", "is_released"),
    [
        (Losses(0.18, 0.29), True),
        (Losses(0.4, 0.29), False),
        (None, True),
        # Within the noise of the batches they are no worse.
        (Losses(0.4, 0.29, 0.06), True),
        (Losses(0.4, 0.29, 0.05), False),
    ],
)
def test_without_held_out_data_a_loss_that_came_down_is_released_unless_the_newest_batches_are_worse(
    newest, is_released
):
    """Three poisoned batches, say: going back for them would cost batches and win nothing."""
    state = watched(found()[0], [3.0] * 20 + [0.2] * 60, 1000)[0]
    after, acts = ap.compared(state, Comparison(newest, None, 2.3), (2, 9), POLICY)

    assert acts == ((ap.Release("the loss came down by itself"),) if is_released else (ap.TryBoth(),))
    assert (after == ap.Autopilot()) is is_released


def test_damage_that_is_half_learnt_away_is_tried_both_ways():
    """Shuffled rows of a last layer: the loss came down, and the kept weights are still better on both sets."""
    state, _, at = watched(found()[0], [3.0] * 20 + [0.5] * 60, 1000)
    shuffled = Comparison(Losses(2.21, 1.82), Losses(2.48, 2.12), 3.8)

    state, acts = ap.compared(state, shuffled, (1, at), POLICY)

    assert acts == (ap.TryBoth(),)
    assert state.place.ceiling == pytest.approx(1.0)


def test_a_wrong_scale_of_the_gradients_is_watched_to_its_end_and_tried_both_ways():
    """No loss rises, so none comes down: a stalled optimizer looks sound. Only another branch shows what it lost."""
    state, acts = found(verdict=SCALED)
    assert acts == (ap.PinState(972),)
    state, acts, at = watched(state, [0.5] * 500, 1000)
    assert (acts, at) == ((ap.Compare(),), 1000 + HORIZON - 1)

    tried, acts = ap.compared(state, CHANGED, (1, at), POLICY)
    assert acts == (ap.TryBoth(),)
    assert tried.place.ceiling > 1e300, "every loss is usual"
    assert ap.compared(state, CHANGED, (1, at), ap.Policy(trial=False)) == (
        ap.Autopilot(),
        (ap.Release("no loss rose"),),
    )
    assert isinstance(ap.compared(state, DAMAGED, (1, at), POLICY)[1][0], ap.GoBack)


def test_a_weight_that_spoils_some_batches_is_found_though_others_are_finite():
    """Four steps in a row are not finite. 32 finite losses later both states are compared."""
    state, acts = found(verdict=BURST, began=4)
    assert acts == (ap.PinState(988),)
    state, acts, at = watched(state, [0.5, math.inf] * 60, 1000)
    assert (acts, at) == ((ap.Compare(),), 1062)

    broken = Comparison(Losses(math.inf, 0.1), Losses(1e35, 0.2), 2.3)
    assert isinstance(ap.compared(state, broken, (1, at), POLICY)[1][0], ap.GoBack)
    # The kept weights give no finite loss either: the batches are to blame, and they are skipped.
    sound = Comparison(Losses(math.inf, math.inf), Losses(0.2, 0.2), 2.3)
    assert ap.compared(state, sound, (1, at), POLICY)[0] == ap.Autopilot()
    # Nine of them in a row are gone back for at once, watched or not.
    assert isinstance(found(state, SICK)[1][0], ap.GoBack)


def test_a_step_that_is_not_finite_and_not_skipped_is_gone_back_for_at_once():
    """With `detect.skip: false` its update was made."""
    assert isinstance(found(verdict=Verdict(Finding.NON_FINITE, Signal.LOSS, math.nan, 0.5, 2.0))[1][0], ap.GoBack)


def test_a_change_of_the_objective_is_released_and_the_detector_begins_anew():
    """The network is sound: the run never goes back."""
    state, acts, _ = compared(CHANGED)

    assert (acts[0].begins_anew, state) == (True, ap.Autopilot())


@pytest.mark.parametrize(("comparison", "batches"), [(DAMAGED, 8), (POISONED, HORIZON + 20 + ap.COMPARED)])
def test_damage_is_gone_back_for_with_its_batches_in_quarantine(comparison, batches):
    """Eight if the weights are to blame; all since the rise began if the batches are. What is loud is not learnt."""
    state, (back,), _ = compared(comparison)

    assert isinstance(back, ap.GoBack)
    assert (back.first, back.batches, back.keeps_loud) == ((1, 980), batches, False)
    assert state.returns == 1


def test_an_unclear_rise_is_tried_both_ways_once_a_place():
    """The present state is kept first. Then the run goes back without the batches of the rise, and both are compared at
    the same batch. The better one lives; a tie keeps the one that went on.
    """
    state, both, at = compared(UNCLEAR)
    assert both == (ap.TryBoth(),)
    state, (back,) = ap.kept(state, (1, at), POLICY)
    assert (back.first, back.batches, back.keeps_loud) == ((1, 980), HORIZON + 20, True)
    assert state.trial.until == (1, at)
    assert found(state)[1] == (), "the trial decides"

    returned, chosen = ap.branches_compared(state, 0.3)
    assert chosen == (ap.Choose(ap.Future.RETURNED),)
    assert returned.place.tried
    went_on, chosen = ap.branches_compared(state, 0.7)
    assert chosen == (ap.Choose(ap.Future.WENT_ON),)
    assert went_on == ap.Autopilot()
    assert ap.found(state, SICK, ap.Found(step=990, batch=(1, 990), first=(1, 981)), POLICY)[1][0] == chosen[0]


def test_without_held_out_data_noise_does_not_choose_the_branch_that_went_back():
    """Both branches are alike, and each batch differs by chance. Of 1000 trials it lives in a few; if it is really
    better, in nearly all.
    """
    draw, chosen = random.Random(8), {0.0: 0, 0.3: 0}
    for gain in chosen:
        for _ in range(1000):
            hard = [draw.uniform(1.0, 3.0) for _ in range(ap.COMPARED)]
            returned = [one - gain + draw.gauss(0.0, 0.2) for one in hard]
            state = ap.Autopilot(trial=ap.Trial(tuple(hard), until=(1, 9)), last=tuple(returned))
            chosen[gain] += ap.branches_compared(state, None)[1] == (ap.Choose(ap.Future.RETURNED),)

    assert chosen[0.0] < 60
    assert chosen[0.3] > 990


@pytest.mark.parametrize(("loss", "future"), [(2.9, ap.Future.RETURNED), (3.0, ap.Future.WENT_ON)])
def test_without_held_out_data_the_losses_of_the_same_batches_decide(loss, future):
    """Both branches made the same last updates, each loss from before its update."""
    state, _, at = compared(Comparison(None, None, 2.3))
    state, _ = ap.kept(state, (1, at), POLICY)
    state, _, _ = watched(state, [loss] * ap.COMPARED, at - ap.COMPARED)

    assert ap.branches_compared(state, None)[1][0] == ap.Choose(future)


def test_without_trials_an_unclear_rise_goes_on_with_its_pin():
    """`detect.trial: false`, or a state that cannot be kept."""
    state, acts, _ = compared(UNCLEAR, ap.Policy(trial=False))
    assert [type(one) for one in acts] == [ap.GoOn]
    assert state.given_up

    state, _, at = compared(UNCLEAR)
    state, acts = ap.not_kept(state)
    assert [type(one) for one in acts] == [ap.GoOn]
    assert ap.kept(state, (1, at), POLICY) == (state, ())


@pytest.mark.parametrize(("policy", "last"), [(POLICY, ap.GoOn), (ap.Policy(halts=True), ap.Halt)])
def test_after_two_returns_without_help_the_run_goes_on_and_keeps_the_pin(policy, last):
    """It says so once, and never halts for finite values, however often they are found; `halts` wants a halt."""
    state, acts, at = compared(POISONED)
    state, _ = found(state, step=at)
    state, acts, at = watched(state, [3.0] * 500, at)
    state, acts = ap.compared(state, POISONED, (1, at), POLICY)
    assert acts[0].batches == at - (at - HORIZON + 1 - 20) + 1
    state, acts = found(state, step=at, policy=policy)

    assert [type(one) for one in acts] == [last]
    assert all(found(state, step=at + more)[1] == () for more in range(0, 2000, 100))
    state, acts, _ = watched(state, [0.5] * 100, at + 1)
    assert (state, acts) == (ap.Autopilot(), ()), "the pin is not released when the run comes down"


def test_values_that_are_not_finite_are_gone_back_for_at_once_and_halt_the_third_time():
    """Twice from one place; only they ever halt a run."""
    state, acts = found(verdict=SICK, began=9)
    assert [type(one) for one in acts] == [ap.GoBack]
    assert acts[0].keeps_loud

    state, acts = found(state, SICK, step=1001)
    assert [type(one) for one in acts] == [ap.GoBack]
    state, acts = found(state, SICK, step=1002)
    assert [type(one) for one in acts] == [ap.Halt]


def test_a_place_that_was_passed_in_health_is_left_and_its_pin_released():
    """Loud batches at 1895, 1935, 1975, each cured, are three places."""
    state = ap.Autopilot()
    for step in (1895, 1935, 1975):
        state, acts = found(state, SICK, step=step, began=9)
        assert [type(one) for one in acts] == [ap.GoBack]
        assert state.returns == 1
        state, acts, at = watched(state, [0.5] * 100, step - 20)
        assert [type(one) for one in acts] == [ap.Release]
        assert at <= step + 32


def test_a_collapse_of_the_accuracy_is_compared_at_once():
    """Two validations have shown it. The losses before it tell nothing of where its place ends."""
    sick = Verdict(Finding.COLLAPSE, Signal.ACCURACY, 0.1, 0.8, 0.4)
    state, acts = found(verdict=sick, began=0)
    assert acts == (ap.PinState(992), ap.Compare())

    state, (back,) = ap.compared(state, DAMAGED, (1, 1016), POLICY)
    assert isinstance(back, ap.GoBack)
    assert state.place.ceiling == math.inf


def test_a_lost_pin_ends_a_watch():
    """Without it nothing can be compared."""
    assert ap.pin_lost(found()[0]).watch is None


def test_whatever_comes_finite_values_never_halt(seed):
    """Random findings, losses and comparisons: a bounded number of returns a place, one trial a place."""
    draw = random.Random(seed)
    state, step = ap.Autopilot(), 0
    farthest = times = 0
    for _ in range(20_000):
        step += 1
        if draw.random() < 0.02:
            state, acts = found(state, step=step, began=draw.randrange(60))
        else:
            state, acts = ap.stepped(state, (1, step), draw.choice((0.5, 0.5, 3.0, 9.0)))
        if ap.Compare() in acts:
            state, acts = ap.compared(state, draw.choice((DAMAGED, POISONED, CHANGED, UNCLEAR)), (1, step), POLICY)
        if ap.TryBoth() in acts:
            state, acts = ap.kept(state, (1, step), POLICY)
        if any(isinstance(one, ap.GoBack) for one in acts):
            # Whatever was found and explained on the way: it does not go back a third time without having come further.
            farthest, times = max(farthest, step), 1 if step > farthest else times + 1
            assert times <= 2
            step -= 150
        if state.trial is not None and step >= state.trial.until[1]:
            state, acts = ap.branches_compared(state, draw.random())
        assert not any(isinstance(one, ap.Halt) for one in acts)
        assert state.returns <= 2
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=ap.Autopilot) == state
