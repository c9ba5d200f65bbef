"""`SweepRates`: the losses are those of a plain loop at rising rates, the same each time; what is suggested."""

from __future__ import annotations

import math
from itertools import count, pairwise

import pytest
import torch

from tests.trainer.tasks import swept
from tests.trainer.tasks.swept import Network
from tolariad.trainer.build import build
from tolariad.trainer.probes.answering import tried
from tolariad.trainer.probes.messages import SweepPoint, SweepRates, SweptGroup
from tolariad.trainer.probes.rate_sweep import rates, suggested

SGD = {"optimizer": {"name": "sgd"}, "learning_rate": {"base_lr": 0.1}, "batch_size": 10}


@pytest.fixture
def sweep(configured):
    """Sweep a task of tasks/swept.py. Return the answer, or the refusal, and the exit code."""

    def give(name, fields=None, **explicit):
        made = configured(f"{swept.FILE}:{name}", **{"epochs": 1, **SGD, **explicit})
        given = {"start": 1e-4, "end": 1.0, "steps": 30, **(fields or {})}
        return tried(SweepRates(config=made.decode(), **given))

    return give


@pytest.mark.parametrize("curvature", [0.5, 8.0, 300.0])
def test_a_parabola_diverges_above_two_over_its_curvature(sweep, curvature):
    """Each update at a smaller rate lowers the loss, each at a larger one raises it."""
    options = {"curvature": curvature}
    found, code = sweep(
        "Parabola", {"start": 1e-3, "end": 10.0, "steps": 200, "stop_factor": 0.0}, task_options=options
    )

    assert code == 0
    falls = [(one.rate, after.loss < one.loss) for one, after in pairwise(found.points)]
    assert [rate < 2.0 / curvature for rate, _ in falls] == [fell for _, fell in falls]
    assert {fell for _, fell in falls} == {True, False}


GROUPS = [
    {"match": "0.*", "name": "low", "base_lr": 0.025},
    {"match": "*.bias", "name": "still", "policy": "frozen"},
]
# The factor of each parameter's rate to the swept one.
FACTORS = {
    "Network": ({}, {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 1.0, "2.bias": 1.0}),
    "TwoOptimizers": ({}, {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 0.5, "2.bias": 0.5}),
    "Network in groups": (
        {"optimizer": {"name": "sgd", "groups": GROUPS}},
        {"0.weight": 0.25, "0.bias": 0.25, "2.weight": 1.0, "2.bias": 0.0},
    ),
}


@pytest.mark.parametrize("case", FACTORS)
def test_each_loss_is_that_of_a_plain_loop(sweep, configured, case):
    """Bit for bit, over several epochs, in the order of the run. Groups keep their ratio, and no hook is called."""
    name, (explicit, factors) = case.split()[0], FACTORS[case]
    found, _ = sweep(name, {"stop_factor": 0.0}, **explicit)
    setup = build(configured(f"{swept.FILE}:{name}", epochs=1, **{**SGD, **explicit}))
    for owner, _ in setup.owners:
        setup.rates.unregister_optimizer(owner)
    named = dict(setup.model.named_parameters())
    plain = torch.optim.SGD([{"params": [named[one]]} for one in factors], lr=0.1)
    batches = (batch for epoch in count(1) for batch in setup.train.epoch(epoch, 0))
    losses = []
    for rate, batch in zip(rates(1e-4, 1.0, 30), batches, strict=False):
        plain.zero_grad()
        loss = setup.task.loss(setup.model, batch)
        loss.backward()
        for group, factor in zip(plain.param_groups, factors.values(), strict=True):
            group["lr"] = rate * factor
        plain.step()
        losses.append(loss.item())

    assert [point.loss for point in found.points] == losses
    assert (found.points[0].rate, found.points[-1].rate) == (1e-4, 1.0)
    assert Network.hooks == 0


def test_the_same_seed_gives_the_same_curve(sweep):
    """Bit for bit, whatever was drawn in between; another seed gives another curve."""
    first = sweep("Network")[0]
    torch.rand(7)

    assert sweep("Network")[0] == first
    assert sweep("Network", rng_seed=8)[0].points[0].loss != first.points[0].loss
    assert first.rng_seed == 7


def test_the_smoothed_loss_is_an_average_without_bias(sweep):
    """The weights of the past are 0.98, 0.98 squared and so on; they add up to one."""
    points = sweep("Network", {"stop_factor": 0.0})[0].points
    for n in (1, 2, 30):
        weights = [0.98**age for age in range(n)]
        mean = sum(w * p.loss for w, p in zip(weights, reversed(points[:n]), strict=True)) / sum(weights)
        assert points[n - 1].smoothed == pytest.approx(mean, rel=1e-12)


def test_which_group_is_swept_is_said(sweep):
    """The first with the configured rate. The others have their factor, also if the task makes its updates itself."""
    one, two = sweep("TwoOptimizers")[0], sweep("Updating")[0]
    grouped = sweep("Network", optimizer={"name": "sgd", "groups": GROUPS})[0]

    assert one.groups == two.groups == (SweptGroup("body", 0.1, 1.0), SweptGroup("head", 0.05, 0.5))
    assert one.points != two.points
    assert {(group.name, group.factor) for group in grouped.groups} == {("low", 0.25), ("still", 0.0), ("default", 1.0)}
    assert (one.swept, two.swept, grouped.swept) == ("body", "body", "default")


def test_a_model_without_a_rate_is_refused(sweep):
    """All of its groups are frozen."""
    everything, code = sweep(
        "Network", optimizer={"name": "sgd", "groups": [{"match": "*", "name": "all", "policy": "frozen"}]}
    )

    assert code == 78
    assert "nothing to sweep" in everything.error


@pytest.mark.parametrize(("level", "stops"), [(0.0, True), (-50.0, True), (0.0, False)])
def test_the_sweep_stops_at_four_times_the_best(sweep, level, stops):
    """A negative best counts by its size. The sweep goes to its end if it may."""
    fields = {"start": 1e-2, "end": 100.0, "steps": 80, "stop_factor": 4.0 if stops else 0.0}
    found, code = sweep("Parabola", fields, task_options={"curvature": 4.0, "level": level})
    best = min(point.smoothed for point in found.points)

    assert code == 0
    assert (found.stopped, len(found.points) < 80) == (("diverged", True) if stops else ("", False))
    after = [point.smoothed > best + 3.0 * abs(best) for point in found.points]
    after = after[[point.smoothed for point in found.points].index(best) :]
    assert (after[0], after[-1]) == (False, True)
    assert after.count(True) == 1 or not stops


def test_a_loss_that_is_not_finite_ends_the_sweep(sweep):
    """It is no point of the curve; at the first rate there is no curve."""
    found, code = sweep("Breaks", {"stop_factor": 0.0, "end": 1000.0})
    refused, refused_code = sweep("Parabola", task_options={"curvature": 1.0e308, "level": 1.7e308})

    assert (code, found.stopped) == (0, "not_finite")
    assert all(math.isfinite(point.loss) for point in found.points)
    assert refused_code == 78
    assert "not finite at the first rate, 0.0001" in refused.error


def curve(losses):
    return [SweepPoint(10.0 ** (n / 10), loss, loss) for n, loss in enumerate(losses)]


def test_the_steepest_point_lies_before_the_minimum():
    """A fall after an explosion is no rate to train with. A loss that never falls gives no suggestion."""
    falls = [2.0] * 20 + [2.0 - 0.1 * n for n in range(1, 5)] + [1.2, 1.1, 1.05, 1.04]
    explodes = [*falls, 5.0, 9.0, 3.0, 2.0, 9.0]

    assert suggested(curve(explodes)) == (pytest.approx(10.0**2.3), pytest.approx(10.0**1.7))
    assert suggested(curve([1.0 + 0.1 * n for n in range(30)])) == (None, None)
    assert suggested(curve([3.0])) == (None, None)


def test_a_sweep_of_a_run_begins_at_its_weights_and_changes_none_of_its_files(trained):
    """The first loss is that of the checkpoint's model on the first batch of the data."""
    run = trained()
    before = {path: path.read_bytes() for path in sorted(run.daemon.run_dir.rglob("*")) if path.is_file()}
    found, code = run.ask(SweepRates, start=1e-9, end=1e-8, steps=10)
    anew, _ = run.ask(SweepRates, start=1e-9, end=1e-8, steps=10, weights=None)

    assert code == 0
    assert found.points[0].loss < anew.points[0].loss
    assert before == {path: path.read_bytes() for path in sorted(run.daemon.run_dir.rglob("*")) if path.is_file()}
