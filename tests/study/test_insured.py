"""The autopilot in real small trainings: the short form of `python -m benchmarks.detection`."""

from __future__ import annotations

import pytest
import torch

from benchmarks.detection import shapes
from benchmarks.detection.choosing import CHOOSING
from benchmarks.detection.driver import AUTOPILOT, RECORDING, pinned_threads, run
from benchmarks.detection.faults import FAULTS
from benchmarks.detection.judging import JUDGING
from benchmarks.detection.rows import struck
from benchmarks.detection.training import Digits

HEALTHY = {f"{one.kind}: {one.name}": one for one in JUDGING}
STRUCK = {one.fault.name: one for one in struck()}


@pytest.fixture(autouse=True)
def _alone():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    pinned_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def test_the_study_has_thirty_of_each_and_what_chose_does_not_judge():
    """Kinds of trainings that judge are others than those that chose; faults and shapes are as many."""
    chosen, judged = ({one.kind for one in trainings} - {"plain"} for trainings in (CHOOSING, JUDGING))

    assert min(len(CHOOSING), len(JUDGING), len(FAULTS), len(shapes.SHAPES)) >= 30
    assert min(len(chosen), len(judged), len({one.kind for one in shapes.SHAPES})) >= 12
    assert not chosen & judged


def test_a_language_model_that_lost_its_way_is_found_in_a_sequence():
    """Weights redrawn, or targets random: the loss rises by x1.9 only. Its pin is from before the rise."""
    for how in shapes.LOSSES:
        tally = shapes.language(3.9, 2.1, 0.03, how, shapes.SEED, 1, 2700)
        assert tally.compared == 1
        assert 0 <= tally.delays[0] < 130


@pytest.mark.study
def test_a_run_under_the_autopilot_is_the_plain_run_if_nothing_is_found():
    """Bit for bit: keeping states draws nothing and changes nothing."""
    acting, plain = run(Digits, AUTOPILOT, 1), run(Digits, RECORDING, 1)

    assert (acting.skips, acting.pins) == (0, 0)
    assert acting.measure == plain.measure


@pytest.mark.study
@pytest.mark.parametrize(
    "name",
    ["label smoothing: 0.1", "adversarial examples: 0.1", "new classes: from five", "quantisation: seven levels"],
)
def test_a_healthy_change_is_never_gone_back_for(name):
    """The objective or the data changed in mid-run, and nobody announced it."""
    result = run(HEALTHY[name].make, AUTOPILOT, 1)

    assert (result.backs, result.halted) == (0, False)


@pytest.mark.study
@pytest.mark.parametrize(
    "name",
    [
        "layer of NaN",
        "all weights redrawn",
        "first layer's gradient sign flipped, 200 steps",
        "loss scale x1000 wrong for 30 steps, Adam",
    ],
)
def test_damaged_weights_are_gone_back_for_and_cost_nothing(name):
    """The run ends as the clean one does, within a tenth of what the fault costs a plain loop."""
    one = STRUCK[name]
    clean = run(one.make, RECORDING, 1).measure
    result, plain = run(one.make, AUTOPILOT, 1, one.fault), run(one.make, RECORDING, 1, one.fault)

    assert result.backs >= 1
    assert not result.halted
    # A plain loop with a layer of NaN has no metric at all.
    assert not plain.measure >= clean - 0.01
    assert result.measure >= clean - max(0.01, 0.1 * abs(clean))
