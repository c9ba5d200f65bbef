"""The collection of a step's metrics: numbers are read at once or in one transfer, and anything else is refused."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from tolariad.core.calc.bounds import METRICS_MAX
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step import metrics
from tolariad.trainer.step.metrics import StepMetrics


def read(made):
    """The metrics of the step by name."""
    row = made.taken().read()
    names = list(made._slots)
    return {name: value for name, value in zip(names, row, strict=True) if not math.isnan(value)}


def collected(*logged, names=(), parts=1):
    made = StepMetrics()
    made.begin(names)
    for one in logged:
        made.log(one, parts)
    return made


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (torch.tensor(2.5, requires_grad=True), 2.5),
        (torch.tensor([3]), 3.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (np.float32(1.5), 1.5),
        (np.array([4]), 4.0),
        (7, 7.0),
        (math.inf, math.inf),
    ],
)
def test_a_number_of_any_kind_is_read(value, number):
    """Without a warning, as a float."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = read(collected({"it": value}))
    assert numbers == {"it": number}
    assert type(numbers["it"]) is float


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"logits": torch.ones(12, 4)}, r"'logits' is a tensor of shape \(12, 4\); a metric is a number"),
        ({"z": torch.tensor(1j)}, "'z' is a tensor of shape"),
        ({"name": "x"}, "'name' is a str; a metric is a number"),
        ({"none": None}, "'none' is a NoneType"),
        ({3: 1.0}, "3 is no name of a metric"),
        ({"": 1.0}, "'' is no name of a metric"),
        ({"a\nb": 1.0}, "is no name of a metric"),
        ({"x" * 2000: 1.0}, "is no name of a metric: that is a text of 1 to 1024"),
        ({"huge": 10**400}, "'huge' is a int"),
        ({f"m{n}": n for n in range(METRICS_MAX)} | {"more": 1}, "'more' is one too many: .* at most 64 names"),
    ],
)
def test_what_is_no_metric_is_refused_with_its_name(given, says):
    """Nothing is left out in silence."""
    with pytest.raises(SetupRefused, match=says):
        collected(given)


@pytest.mark.parametrize("parts", [1, 2])
def test_of_what_a_loss_returned_only_the_numbers_are_metrics(parts):
    """The output of a model has logits, states and a cache too: they get no name and no value."""
    made = StepMetrics()
    output = {
        "loss": torch.ones(()),
        "logits": torch.ones(2, 3),
        "aux": torch.tensor(0.5),
        "cache": (None,),
        "text": "x",
    }
    made.log(output, parts, but="loss")
    assert (read(made), made.unreported()) == ({"aux": 0.5}, ("aux",))
    made.log({"loss": torch.ones(()), "logits": torch.ones(2, 3), "hidden": None}, parts, but="loss")
    assert made.is_empty, "nothing was a number"


def test_the_names_that_the_run_has_already_count_too():
    """A known name is always taken; a new one only while there are fewer than 64."""
    names = [f"m{n}" for n in range(METRICS_MAX)]
    assert read(collected({"m3": 1.0}, names=names)) == {"m3": 1.0}
    with pytest.raises(SetupRefused, match="'other' is one too many"):
        collected({"other": 1.0}, names=names)


def test_a_row_has_a_value_for_each_name_in_the_order_of_the_run():
    """NaN for those that the step does not have; a new name goes to the end, and is told once."""
    made = collected({"b": 2.0, "new": 3.0}, names=("a", "b"))

    assert made.unreported() == ("new",)
    assert made.unreported() == ()
    assert list(map(str, made.taken().read())) == ["nan", "2.0", "3.0"]
    assert made.is_empty


def test_the_last_number_of_a_name_counts_and_of_micro_batches_the_mean():
    """The mean is over those that have one."""
    assert read(collected({"a": 1.0}, {"a": 2.0})) == {"a": 2.0}
    assert read(collected({"a": 1.0, "b": 5.0}, {"a": 2.0}, parts=2)) == {"a": 1.5, "b": 5.0}


@pytest.mark.parametrize("kinds", [(torch.float32,) * 3, (torch.float32, torch.int64, torch.bfloat16)], ids=str)
def test_tensors_of_a_device_are_read_together(monkeypatch, kinds):
    """In one transfer, begun before the update; another is only for what a hook logs after it."""
    # As on a device: none is read at once.
    monkeypatch.setattr(metrics, "_read", lambda value: value.detach().reshape(()))
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    made, transfers = StepMetrics(), []
    begin = metrics.Transfer
    monkeypatch.setattr(metrics, "Transfer", lambda values: transfers.append(values) or begin(values))
    weights = [torch.tensor(float(n)).to(kind) for n, kind in enumerate(kinds)]
    made.log({f"m{n}": weight for n, weight in enumerate(weights)})
    made.send()
    for weight in weights:
        weight.add_(10)
    made.log({"m0": torch.tensor(7.0), "of a hook": torch.tensor(8.0)})

    assert read(made) == {"m0": 7.0, "m1": 1.0, "m2": 2.0, "of a hook": 8.0}
    assert len(transfers) == 2
    assert made.is_empty


def test_tokens_of_micro_batches_are_summed():
    """They are a count, which `stop.tokens` adds up; everything else is a mean."""
    made = StepMetrics()
    made.begin(("loss_part", "tokens"))
    for tokens in (10, torch.tensor(30)):
        made.log({"loss_part": float(tokens), "tokens": tokens}, parts=2)
    assert made.row() == (20.0, 40.0)
