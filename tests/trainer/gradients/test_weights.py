"""How much an auxiliary loss of a seed counts, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer.gradients.models import (
    SEEDS,
    aggregator,
    backward,
    forked,
    infos,
    one_loss,
)
from tolariad.core.calc.seeds.blending import alpha
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.gradients import MultiSeedGradientAggregator


@pytest.mark.parametrize(
    ("stage", "weight"),
    [
        (Stage.UNKNOWN, 0.0),
        (Stage.DORMANT, 0.0),
        (Stage.GERMINATED, 0.01),
        (Stage.TRAINING, 0.1),
        (Stage.BLENDING, 0.25),
        (Stage.SHADOWING, 0.5),
        (Stage.PROBATIONARY, 0.0),
        (Stage.FOSSILIZED, 0.0),
        (Stage.CULLED, 0.0),
        (Stage.EMBARGOED, 0.0),
        (Stage.RESETTING, 0.0),
        (Stage.TERMINATED, 0.0),
    ],
)
def test_each_stage_has_its_weight(stage, weight):
    """The loss of the step is the host's, plus weight times importance times the share of the batch."""
    host, seed = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (3.0, 7.0))
    info = one_loss(seed, stage=stage, alpha=0.25, importance=2.0, batch_size=5)

    loss, telemetry = aggregator().aggregate_losses(host, [info], host_batch_size=4)

    assert loss.item() == pytest.approx(3.0 + weight * 2.0 * (5 / 4) * 7.0)
    assert telemetry["total_weight"] == pytest.approx(1.0 + weight * 2.0)
    assert telemetry["num_active_seeds"] == (weight > 0)


def test_an_unknown_stage_has_no_weight_and_is_counted():
    """A number that is no stage never counts as 1."""
    host, seed = (torch.tensor(value, requires_grad=True) for value in (3.0, 7.0))

    loss, telemetry = aggregator().aggregate_losses(host, [one_loss(seed, stage=99)], 4)

    assert loss.item() == 3.0
    assert telemetry["seeds_of_unknown_stage"] == 1.0


def test_a_stage_can_have_another_weight():
    """Fine-tuning is a weight of 1 in PROBATIONARY."""
    host, seed = (torch.tensor(value, requires_grad=True) for value in (3.0, 7.0))
    tuning = aggregator(stage_weights={Stage.PROBATIONARY: 1.0})

    loss, _ = tuning.aggregate_losses(host, [one_loss(seed, stage=Stage.PROBATIONARY)], 4)

    assert loss.item() == 10.0


@pytest.mark.parametrize(("epoch", "total", "expected"), [(0, 10, 0.0), (5, 10, 0.5), (10, 10, 1.0), (3, 0, 0.5)])
def test_without_an_alpha_blending_follows_the_run(epoch, total, expected):
    """The source's schedule over the whole run is the fallback."""
    host, seed = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.0, 1.0))

    loss, _ = aggregator().aggregate_losses(host, [one_loss(seed, stage=Stage.BLENDING)], 4, epoch, total)

    assert loss.item() == pytest.approx(alpha(epoch, total) if total else expected)
    assert loss.item() == pytest.approx(expected)


def test_telemetry_has_the_sources_names():
    """The five keys of the source, as numbers, and the largest contribution of a seed."""
    model, losses = forked()
    _, telemetry = aggregator().aggregate_losses(losses["host"], infos(losses), 5)

    assert set(telemetry) >= {
        "host_loss",
        "num_active_seeds",
        "total_weight",
        "conflicts_detected",
        "max_seed_contribution",
    }
    assert telemetry["host_loss"] == losses["host"].item()
    assert telemetry["total_weight"] == 2.5
    assert telemetry["max_seed_contribution"] == pytest.approx(max(0.5 * losses[name].item() for name in SEEDS))
    assert telemetry == {**backward(model, losses).telemetry(), "conflicts_detected": 0.0, "shared_parameters": 0.0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"importance": -1.0}, "importance must be a finite number"),
        ({"importance": math.nan}, "importance must be a finite number"),
        ({"stage": Stage.BLENDING, "alpha": 1.5}, "alpha must be from 0 to 1"),
        ({"stage": Stage.BLENDING, "alpha": math.nan}, "alpha must be from 0 to 1"),
    ],
)
def test_numbers_out_of_range_name_the_seed(wrong, said):
    """Nothing is computed, and the message says which seed."""
    host, seed = (torch.tensor(value, requires_grad=True) for value in (3.0, 7.0))

    with pytest.raises(ValueError, match=f"seed 'one': {said}"):
        aggregator().aggregate_losses(host, [one_loss(seed, **wrong)], 4)


def test_losses_that_cannot_be_used_are_refused():
    """A loss without a graph, of several elements, given twice, and a host's batch of no samples."""
    host, seed = (torch.tensor(value, requires_grad=True) for value in (3.0, 7.0))
    of = aggregator()
    with pytest.raises(ValueError, match="its loss has no graph"):
        of.aggregate_losses(host, [one_loss(seed.detach())], 4)
    with pytest.raises(ValueError, match=r"has the shape \(2,\)"):
        of.aggregate_losses(host, [one_loss(seed.expand(2))], 4)
    with pytest.raises(ValueError, match="seed 'one' has two losses"):
        of.aggregate_losses(host, [one_loss(seed), one_loss(seed)], 4)
    with pytest.raises(ValueError, match="host_batch_size"):
        of.aggregate_losses(host, [one_loss(seed)], 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"conflict_threshold": 0.1}, "a cosine from -1 to 0"),
        ({"max_gradient_norm": -1.0}, "max_gradient_norm"),
        ({"stability_epsilon": 1.0}, "stability_epsilon"),
        ({"conflict_resolution_method": "mean"}, "pcgrad, average, priority, torchjd:NAME, not 'mean'"),
        ({"every": 0}, "every must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, said):
    """A method that does not exist is an error when the aggregator is made, not in a step."""
    with pytest.raises(ValueError, match=said):
        MultiSeedGradientAggregator(**wrong)
