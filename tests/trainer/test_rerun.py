"""A re-run is compared bit for bit and reports the first difference."""

from __future__ import annotations

import math

import msgspec
import pytest

from tolariad.core import messages as m
from tolariad.trainer.step.rerun import STEP_FIELDS, Rerun, ScriptError, first_difference


def report(step, loss=1.0, grad_norm=2.0, lr=0.1, rates=5):
    return m.StepReport(step=step, epoch=1, batch=step, loss=loss, grad_norm=grad_norm, lr=lr, rates=rates)


def rerun_of(*steps, validations=None):
    return Rerun(msgspec.msgpack.encode(m.Script(steps=steps, validations=validations or {})))


def test_equal_steps_end_in_a_report_without_a_difference():
    """The report comes with the last step, with the number of comparisons."""
    rerun = rerun_of(m.ScriptStep(4, 1.0, math.nan, 0.1, 5), m.ScriptStep(5, -math.inf, 2.0, 0.1, 5))
    assert rerun.compare(report(4, grad_norm=math.nan)) is None
    finished = rerun.compare(report(5, loss=-math.inf))
    assert (finished.first, finished.last, finished.compared, finished.first_difference) == (4, 5, 2, None)
    assert not rerun.active


@pytest.mark.parametrize(
    ("field", "expected", "found"),
    [
        ("loss", 1.0, math.nextafter(1.0, 2.0)),
        ("loss", 0.0, -0.0),
        ("grad_norm", 2.0, math.nan),
        ("lr", 0.1, 0.2),
        ("rates", 5, 2**64 - 1),
    ],
)
def test_one_bit_is_enough(field, expected, found):
    """The difference names field and both values exactly."""
    difference = first_difference(
        m.ScriptStep(**{"step": 1, "loss": 1.0, "grad_norm": 2.0, "lr": 0.1, "rates": 5, field: expected}),
        report(1, **{field: found}),
        STEP_FIELDS,
    )
    assert (difference.step, difference.field) == (1, field)
    # Plain numbers, from which every bit can be read back.
    assert (difference.expected, difference.found) == (str(expected), str(found))
    assert "0x" not in difference.expected + difference.found


def test_the_first_difference_is_kept_and_all_are_counted():
    """Only the first difference is kept: later steps differ because of it."""
    rerun = rerun_of(*(m.ScriptStep(n, 1.0, 2.0, 0.1, 5) for n in (1, 2, 3)))
    rerun.compare(report(1))
    rerun.compare(report(2, loss=1.5))
    finished = rerun.compare(report(3, loss=1.5))
    assert (finished.first_difference.step, finished.first_difference.count) == (2, 2)


@pytest.mark.parametrize(
    ("was", "now", "loss", "field"),
    [(1, 2, 1.5, "data"), (1, 1, 1.5, "loss"), (0, 2, 1.5, "loss"), (1, 0, 1.5, "loss"), (1, 2, 1.0, None)],
    ids=["other data", "the same data", "no digest then", "no digest now", "a field that nobody trains on"],
)
def test_a_step_on_other_data_is_named_as_such(was, now, loss, field):
    """The batches were read before the loss was computed. If the numbers are the same, they do not matter."""
    rerun = rerun_of(m.ScriptStep(1, 1.0, 2.0, 0.1, 5, was))
    found = rerun.compare(msgspec.structs.replace(report(1, loss=loss), data=now)).first_difference
    assert (found and found.field) == field
    if field == "data":
        assert (found.expected, found.found) == ("00000001", "00000002")


def test_a_script_that_does_not_follow_the_checkpoint_is_an_error():
    """A step that does not match the script is an error."""
    with pytest.raises(ScriptError, match="continues at step 6, the trainer at step 5"):
        rerun_of(m.ScriptStep(6, 1.0, 2.0, 0.1, 5)).compare(report(5))


def test_without_a_script_there_is_nothing_to_run_again():
    """A new run, and a restart exactly at a checkpoint, have no script."""
    assert not Rerun(None).active
    assert not Rerun(b"").active
    assert rerun_of(validations={2: {"loss": 0.5}}).metrics(2) == {"loss": 0.5}
