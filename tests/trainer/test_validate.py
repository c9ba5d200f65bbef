"""A validation returns means over all samples and changes nothing else."""

from __future__ import annotations

import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tolariad.core.calc.settings.model import Settings, Stop
from tolariad.trainer.data.feed import TensorFeed
from tolariad.trainer.data.samples import samples_of
from tolariad.trainer.errors import SetupRefused, TaskRaised
from tolariad.trainer.step.validate import try_evaluate, validate


class Task:
    def evaluate(self, model, batch):
        assert not model.training
        assert not torch.is_grad_enabled()
        noise = torch.rand(()) + random.random() + np.random.rand()
        return {"mean": (batch[0].sum(), len(batch[0])), "drawn": (noise, 1)}


def setup_of(model, task=None, validation=None):
    return SimpleNamespace(
        task=task or Task(),
        model=model,
        validation=validation or TensorFeed([torch.arange(10.0)], 4, None),
        average=None,
        device=torch.device("cpu"),
        rng_seed=3,
        settings=Settings(),
        forward=nullcontext,
    )


def run(model):
    setup = setup_of(model)
    beats = []
    found = validate(setup, lambda: beats.append(1))
    assert len(beats) == 1 + 3
    return found


def test_means_are_over_samples_not_batches():
    """The last, smaller batch weighs less."""
    found = run(nn.ReLU())
    assert found.means["mean"] == pytest.approx(4.5)
    assert found.samples == 10


class Spread(Task):
    """Keeps values of all batches, for a result that is no mean over them."""

    def __init__(self):
        self.seen = []

    def evaluate(self, model, batch):
        self.seen += batch[0].tolist()
        return {"mean": (batch[0].sum(), len(batch[0]))}

    def on_validation_end(self, model):
        assert not model.training
        found, self.seen = self.seen, []
        return {"spread": max(found) - min(found), "of": torch.tensor(len(found))}


def test_a_result_of_the_whole_validation_stands_beside_the_means():
    """The task gives it after the last batch; one that gives no numbers is refused."""
    found = validate(setup_of(nn.ReLU(), Spread()), lambda: None)
    assert found.means == {"mean": 4.5, "spread": 9.0, "of": 10.0}
    wrong = Spread()
    wrong.on_validation_end = lambda model: {"f1": "high"}
    with pytest.raises(SetupRefused, match=r"on_validation_end\(model\) must return a dict of numbers .* 'f1' is"):
        validate(setup_of(nn.ReLU(), wrong), lambda: None)


def test_generators_and_modes_are_as_before():
    """Validation draws the same numbers every time, and does not affect training."""
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1))
    model[1].eval()
    state, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = run(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    torch.rand(5), np.random.rand(5)
    assert run(model) == first


def test_a_metric_without_a_name_is_refused_with_a_sentence(monkeypatch):
    """Otherwise the trainer would be ended five times for a report that cannot be read."""
    monkeypatch.setattr(Task, "evaluate", lambda self, model, batch: {1: (batch[0].sum(), len(batch[0]))})
    with pytest.raises(SetupRefused, match="by names; 1 is a int"):
        run(nn.ReLU())


def evaluating(evaluate):
    """A setup with this `evaluate`, over ten samples in batches of 4, 4 and 2."""
    return setup_of(nn.ReLU(), SimpleNamespace(evaluate=evaluate))


@pytest.mark.parametrize(
    ("evaluate", "means"),
    [
        (lambda model, batch: batch[0].mean(), {"loss": 4.5}),
        (lambda model, batch: batch[0].mean().item(), {"loss": 4.5}),
        (lambda model, batch: batch[0].mean().numpy(), {"loss": 4.5}),
        (lambda model, batch: {"loss": batch[0].mean(), "high": batch[0].max().item()}, {"loss": 4.5, "high": 5.8}),
        (lambda model, batch: {"loss": (batch[0].sum(), len(batch[0])), "high": batch[0].max()}, None),
    ],
    ids=["tensor", "number", "numpy", "dict", "mixed"],
)
def test_a_mean_counts_as_often_as_its_batch_has_samples(evaluate, means):
    """A number, a tensor with one element, or a dict of those; sums with counts may stand beside them."""
    found = validate(evaluating(evaluate), lambda: None)
    assert found.means == pytest.approx(means or {"loss": 4.5, "high": 5.8})
    assert found.samples == 10


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (None, "returns None. It may return"),
        ({"loss": None}, "returns None for 'loss'. It may return"),
        ({"loss": torch.zeros(4)}, r"a tensor of shape \(4,\) for 'loss'"),
        ({"f1": (1.0, 2, 3)}, "a tuple of 3 for 'f1'"),
        ((torch.zeros(4), 4), "a tuple of 2"),
        ((0.7, 0.9), "a tuple of 2"),
        ((0.7, 1), "a tuple of 2"),
        ({"loss": (0.7, 0.9)}, "a tuple of 2 for 'loss'"),
        ({"loss": (0.7, -1)}, "a tuple of 2 for 'loss'"),
        ("0.5", "a str"),
        (torch.zeros((), dtype=torch.complex64), "a tensor of shape"),
    ],
    ids=str,
)
def test_anything_else_is_refused_with_what_may_be_returned(returned, what):
    """The sentence names all three forms."""
    with pytest.raises(SetupRefused, match=what) as refused:
        try_evaluate(evaluating(lambda model, batch: returned))
    for form in ("a number or a tensor with one element", "a dict of those by name", "(sum, count) by name"):
        assert form in str(refused.value)


def test_samples_are_counted_and_not_what_the_means_are_over():
    """A pair may count pixels, tokens or pairs of samples; the weight of the means is theirs."""
    setup = evaluating(lambda model, batch: {"loss": (1.0, 41 * len(batch[0])), "accuracy": 0.5})
    found = validate(setup, lambda: None)

    assert (found.samples, found.weight) == (10, 410)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(3, 2), 3),
        ((torch.zeros(3, 2), torch.zeros(3)), 3),
        ({"scale": torch.tensor(2.0), "inputs": {"ids": torch.zeros(5, 7)}}, 5),
        ([["a", "b"], ["c", "d"]], 2),
        (["a", "b", "c"], 3),
        ({"id": 7}, 1),
        (torch.tensor(1.0), 1),
    ],
    ids=["tensor", "pair", "nested", "texts", "list", "number", "scalar"],
)
def test_samples_are_those_of_the_first_tensor(batch, samples):
    """Without a tensor, those of the first list."""
    assert samples_of(batch) == samples


def test_the_trial_takes_one_batch_and_leaves_no_trace():
    """Not even if `evaluate` switches the model to training: buffers, modes and generators are as before."""
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout())
    seen = []

    def evaluate(model, batch):
        seen.append(len(batch[0]))
        model.calls += 1
        model.train()
        return model(batch[0][:, None] + torch.rand(4, 1)).mean()

    model[1].eval()
    model.calls = 0
    buffers, state = {name: one.clone() for name, one in model.named_buffers()}, torch.get_rng_state()
    found = try_evaluate(setup_of(model, SimpleNamespace(evaluate=evaluate)))
    assert (seen, found.samples, model.calls) == ([4], 4, 0)
    assert all(torch.equal(buffers[name], one) for name, one in model.named_buffers())
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_exception_in_the_trial_refuses_the_run_and_is_kept():
    """Its traceback shows the line; a full disk or memory is the machine's fault, which another start may not have."""

    def evaluate(model, batch):
        raise error

    error = KeyError("labels")
    with pytest.raises(TaskRaised, match=r"evaluate.* raises KeyError on the first batch") as refused:
        try_evaluate(evaluating(evaluate))
    assert refused.value.__cause__ is error
    error = OSError("no space")
    with pytest.raises(OSError, match="no space"):
        try_evaluate(evaluating(evaluate))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"keep_best": "r2:max"}, "keep_best needs the validation's r2; evaluate.* returns f1, mae"),
        ({"stop": Stop(patience=3)}, "stop.patience needs the validation's loss; .* returns f1, mae"),
        ({"stop": Stop(patience=3), "keep_best": "f1:max"}, None),
    ],
)
def test_a_metric_that_epochs_are_judged_by_is_missed_in_the_trial(asked, says):
    """Not after the first epoch of a run."""
    setup = evaluating(lambda model, batch: {"mae": 1.0, "f1": 0.5})
    setup.settings = Settings(**asked)
    if says is None:
        assert try_evaluate(setup).means == {"mae": 1.0, "f1": 0.5}
        return
    with pytest.raises(SetupRefused, match=says):
        try_evaluate(setup)


def test_data_that_raise_in_the_trial_are_named_and_not_evaluate():
    """The loader raises before any batch is there: the sentence is about the validation data, with their exception."""

    def broken(*_):
        raise error
        yield

    setup = evaluating(lambda *_: 0.0)
    setup.validation.epoch = broken
    error = KeyError("label of item 3")
    with pytest.raises(TaskRaised, match=r"^the validation data raise KeyError .*'label of item 3'$") as refused:
        try_evaluate(setup)
    assert refused.value.__cause__ is error
    error = OSError("no such file")
    with pytest.raises(OSError, match="no such file"):
        try_evaluate(setup)
