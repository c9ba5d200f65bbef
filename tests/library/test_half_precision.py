"""fp16: the loss scale handles an overflow of gradients; the detector handles a loss that is not finite."""

from __future__ import annotations

import pytest

from tests.library.small import bits, network
from tests.library.test_detection import poisoned, train
from tests.recorded import Stop, dies_at, events_of, findings, of
from tolariad.core import messages as m

HALF = {"precision": "fp16"}


def sick(run_dir, hook=None, value=float("nan")):
    """Return the bits of an fp16 run with one invalid sample, and the detector's skips."""
    model = network()
    train(run_dir, poisoned(value), hook, model=model, **HALF)
    events = events_of(run_dir)
    return model, events, [one for one in of(events, m.StepSkipped) if one.reason is not m.SkipReason.OVERFLOW]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_of_a_batch_that_is_not_finite_stays_in_half_precision_either(tmp_path, value):
    """Its gradients overflow too. If it counted as an overflow only, running statistics would stay NaN."""
    model, events, skips = sick(tmp_path / "run", value=value)

    assert [(one.epoch, one.reason) for one in skips] == [(n, m.SkipReason.NON_FINITE) for n in (1, 2, 3)]
    assert {one.finding.value for one in findings(events)} == {"non_finite"}
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_such_a_batch_is_skipped_again_by_a_re_run(tmp_path):
    """Equal bit for bit, including the loss scale: otherwise an update would differ."""
    whole, _, skips = sick(tmp_path / "whole")
    with pytest.raises(Stop):
        sick(tmp_path / "run", dies_at(skips[1].step))
    again, events, _ = sick(tmp_path / "run")
    (rerun,) = of(events, m.RerunFinished)

    # Of one epoch or of two: the last checkpoint may still have been on its way to the disk.
    assert rerun.skipped >= 1
    assert rerun.first_difference is None
    assert bits(again) == bits(whole)
