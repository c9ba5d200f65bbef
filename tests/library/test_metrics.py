"""The task's own numbers: each step's once in the table, means in EpochFinished, whatever happens to the run."""

from __future__ import annotations

import collections
import itertools
import math

import pytest
import torch
from torch.nn import functional

from tests.library.small import loaders, made, network
from tests.recorded import events_of, of
from tolariad.core import messages as m
from tolariad.forensics.numbers import epochs_of, steps_of
from tolariad.trainer.errors import SetupRefused

EPOCHS, STEPS_PER_EPOCH = 3, 8
NAN = math.nan


class Measures:
    """Returns the loss with what `others` makes of the model's output and the number of the batch."""

    def __init__(self, others):
        self.others, self.calls = others, itertools.count(1)

    def loss(self, model, batch):
        inputs, targets = batch
        out = model(inputs)
        others = self.others(out, next(self.calls))
        return type(others)(loss=functional.cross_entropy(out, targets), **others)


def train(run_dir, others, *, on_step_end=None, kind=Measures, **settings):
    task = kind(others)
    tolaria = made(run_dir, **settings)
    if on_step_end is not None:
        task.on_step_end = lambda model, step: on_step_end(tolaria, step)
    tolaria.train(network(), *loaders(), EPOCHS, task=task)
    return steps_of(run_dir / "journal").by_name, events_of(run_dir), tolaria


def means(values) -> float:
    found = [value for value in values if not math.isnan(value)]
    return sum(found) / len(found)


def test_what_loss_returns_by_name_is_recorded_with_its_step(run_dir):
    """Tensors, with a graph or of whole numbers, and numbers; the loss and the weights are as without them."""
    seen, plain = [], run_dir / "plain"

    def others(out, call):
        seen.append((out.max().item(), float(call)))
        return {"greatest": out.max(), "calls": torch.tensor(call), "half": 0.5, "yes": True}

    found, events, tolaria = train(run_dir / "run", others)
    assert list(zip(found["greatest"], found["calls"], strict=True)) == seen
    assert set(found["half"]) == {0.5}
    assert set(found["yes"]) == {1.0}
    assert [one.names for one in of(events, m.MetricsNamed)] == [("greatest", "calls", "half", "yes")]
    assert found["loss"] == train(plain, lambda out, call: {})[0]["loss"]
    assert of(events_of(plain), m.MetricsNamed) == []
    last = of(events, m.StepCompleted)[-1]
    assert last.metrics == (*seen[-1], 0.5, 1.0)
    assert tolaria.get_metrics()["greatest"] == seen[-1][0]


class Output(collections.OrderedDict):
    """The output of a model of transformers: a dict with its loss, logits, and None for what was not asked for."""


def test_the_output_of_a_model_is_returned_as_it_is(run_dir):
    """Its numbers are recorded; logits, states and a cache are not, and the training is the same."""

    def others(out, call):
        return Output(logits=out, greatest=out.max(), hidden_states=None, cache=((out, out),))

    found, events, _ = train(run_dir / "run", others)
    assert [one.names for one in of(events, m.MetricsNamed)] == [("greatest",)]
    plain, events, _ = train(run_dir / "plain", lambda out, call: Output(logits=out))
    assert of(events, m.MetricsNamed) == []
    assert plain["loss"] == found["loss"]


def test_an_epoch_ends_with_the_means_over_the_steps_that_have_a_number(run_dir):
    """A NaN is in no mean, an infinity is, and a metric without any number in the epoch is left out."""
    table = {2: {"rare": 4.0, "odd": NAN}, 9: {"rare": math.inf}, 17: {"odd": 1.0}, 18: {"odd": NAN}, 19: {"odd": 2.0}}
    found, events, _ = train(run_dir, lambda out, call: {"calls": call, **table.get(call, {})})

    ended = [one.metrics for one in of(events, m.EpochFinished)]
    assert ended[0] == {"calls": 4.5, "rare": 4.0}
    assert ended[1] == {"calls": 12.5, "rare": math.inf}
    assert ended[2] == {"calls": 20.5, "odd": 1.5}
    assert [one.by_name["calls"] for one in epochs_of(run_dir / "journal")] == [4.5, 12.5, 20.5]
    # In the table a NaN and a missing number are the same.
    has = {name: [step for step, value in enumerate(found[name], 1) if not math.isnan(value)] for name in found}
    assert (has["rare"], has["odd"]) == ([2, 9], [17, 19])
    assert [one.names for one in of(events, m.MetricsNamed)] == [("calls",), ("rare", "odd")]


def test_a_rollback_cuts_the_metrics_of_the_steps_that_it_gives_up(run_dir):
    """The table and the means are those of a run that never went on: each step is there once."""
    ordered = []

    def goes_back(tolaria, step):
        if step == 13 and not ordered:
            ordered.append(tolaria.rollback(1))

    of_the_output = lambda out, call: {"greatest": out.max()}  # noqa: E731
    found, events, _ = train(run_dir / "run", of_the_output, on_step_end=goes_back)
    calm, plain, _ = train(run_dir / "calm", of_the_output)

    assert ordered == [True]
    assert len(of(events, m.StepCompleted)) > EPOCHS * STEPS_PER_EPOCH
    assert found == calm
    last = {one.epoch: one.metrics for one in of(events, m.EpochFinished)}
    assert list(last.values()) == [one.metrics for one in of(plain, m.EpochFinished)]
    assert [one[2] for one in epochs_of(run_dir / "run" / "journal")] == [
        one[2] for one in epochs_of(run_dir / "calm" / "journal")
    ]


def test_micro_batches_give_the_mean_of_their_numbers(run_dir):
    """Of those that have one: the second of each pair of batches has no `odd`."""
    found, _, _ = train(run_dir, lambda out, call: {"calls": call} | ({"odd": call} if call % 2 else {}), accumulate=2)

    assert list(found["calls"]) == [1.5 + 2 * step for step in range(EPOCHS * STEPS_PER_EPOCH // 2)]
    assert list(found["odd"]) == [1.0 + 2 * step for step in range(EPOCHS * STEPS_PER_EPOCH // 2)]


def test_sixty_four_names_are_recorded_and_one_more_ends_the_run_with_a_sentence(run_dir):
    """Over several steps: the names of the whole run count."""
    with pytest.raises(SetupRefused, match=r"'m64' is one too many: a run has at most 64 names of step metrics"):
        train(run_dir, lambda out, call: {f"m{n}": n for n in range(min(65, 16 * call))})

    found = steps_of(run_dir / "journal").by_name
    assert [name for one in of(events_of(run_dir), m.MetricsNamed) for name in one.names] == [
        f"m{n}" for n in range(64)
    ]
    assert list(found["m63"])[-1] == 63.0
    assert len(found["m63"]) == 4


def test_a_metric_may_be_called_like_another_number(run_dir):
    """`lr` of the task is `metric/lr`; the rate keeps its name."""
    found, _, _ = train(run_dir, lambda out, call: {"lr": 5.0, "step": 6.0, "val_loss": 7.0, "metric/lr": 8.0})

    assert [found[name][3] for name in ("metric/lr", "metric/step", "metric/val_loss", "metric/metric/lr")] == [
        *(5.0, 6.0, 7.0, 8.0)
    ]
    assert 0.0 < found["lr"][3] <= 0.01


def test_a_skipped_step_has_no_metrics_and_the_next_one_has_its_own(run_dir):
    """Metrics of a batch without an update are dropped with it."""

    def others(out, call):
        if call == 12:
            out *= NAN
        return {"calls": call}

    found, _, _ = train(run_dir, others)
    assert list(found["calls"]) == [*map(float, range(1, 12)), *map(float, range(13, 25))]


def test_a_hook_that_asks_for_it_gets_the_step_and_can_log(run_dir):
    """Place, loss, metrics and rates are those in the journal; what it logs is a metric of the step."""
    seen, ended = [], []

    class Hooks(Measures):
        def on_step_end(self, model, step, context):
            assert (context.step, context.losses) == (step, {"loss": context.loss})
            context.log("logged", context.metrics["calls"] * 10)
            seen.append((step, context.epoch, context.batch, context.loss, context.rate, context.metrics))

        def on_epoch_end(self, model, epoch, metrics, context):
            assert context.metrics == metrics
            ended.append((context.epoch, context.step, context.loss, next(iter(context.rates))))

    found, events, _ = train(run_dir, lambda out, call: {"calls": call}, kind=Hooks)
    recorded = of(events, m.StepCompleted)
    assert [row[:5] for row in seen] == [(one.step, one.epoch, one.batch, one.loss, one.lr) for one in recorded]
    assert [row[5] for row in seen] == [{"calls": float(n), "logged": 10.0 * n} for n in range(1, 25)]
    assert list(found["logged"]) == [10.0 * step for step in range(1, 25)]
    finished = of(events, m.EpochFinished)
    assert [row[:3] for row in ended] == [(one.epoch, one.step, pytest.approx(one.train_loss)) for one in finished]
    assert {row[3] for row in ended} == {"default"}
