"""Gradients of parameters that several losses share."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from tests.trainer.gradients.models import (
    SEEDS,
    aggregator,
    all_close,
    all_equal,
    backward,
    drawn,
    explicit_pcgrad,
    flat_gradient,
    forked,
    gradients_of,
    one_loss,
    retained,
    shuffled,
)
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.gradients import SeedGradientInfo


@pytest.mark.parametrize("seed", range(10))
def test_pcgrad_on_shared_parameters_is_its_explicit_form(seed):
    """The trunk's gradient is that of the projections on vectors to 1e-12; every head's is that of its own loss."""
    model, losses = forked(seed)
    trunk = list(model.trunk.parameters())
    host = flat_gradient(losses["host"], trunk)
    seeds = [flat_gradient(0.5 * losses[name], trunk) for name in SEEDS]
    drawing = torch.Generator().manual_seed(derived_seed(5, "gradients", 17))
    orders = [torch.randperm(3, generator=drawing).tolist() for _ in SEEDS]
    expected = explicit_pcgrad(host, seeds, orders, 0.0)
    heads = {name: flat_gradient(0.5 * losses[name], list(model.seeds[name].parameters())) for name in SEEDS}

    backward(model, losses, of=aggregator(rng_seed=5), step=17)

    found = torch.cat([parameter.grad.flatten() for parameter in trunk])
    assert (found - expected).norm() < 1e-12 * expected.norm()
    for name in SEEDS:
        own = torch.cat([parameter.grad.flatten() for parameter in model.seeds[name].parameters()])
        assert torch.equal(own, heads[name])


def test_seeds_are_compared_only_on_what_they_share():
    """Two seeds on different layers are compared with the host, each on its own layer, never with each other."""
    torch.manual_seed(3)
    first, second = (nn.Linear(3, 3, bias=False, dtype=torch.float64) for _ in range(2))
    x = torch.randn(4, 3, dtype=torch.float64)
    near = first(x).sum()
    far = second(first(x).detach()).sum()
    expected = [
        torch.autograd.grad(loss, layer.weight, retain_graph=True)[0] for loss, layer in ((near, first), (far, second))
    ]

    # Each seed wants the opposite of the host on its layer, so all of it is projected away.
    seeds = [one_loss(-3 * near), SeedGradientInfo("two", -5 * far, 4, Stage.SHADOWING)]
    found = aggregator().backward_with_aggregation(nn.ModuleList([first, second]), near + far, seeds, 4, 1, 10)

    assert torch.allclose(first.weight.grad, expected[0], rtol=1e-12)
    assert torch.allclose(second.weight.grad, expected[1], rtol=1e-12)
    assert found.conflicts == 2


@pytest.mark.parametrize("method", ["pcgrad", "average", "priority"])
@pytest.mark.parametrize("threshold", [0.0, -0.5])
def test_the_order_of_registration_has_no_influence(method, threshold):
    """Every order of the seeds gives the same bits, in single precision too."""
    model, losses = forked(4, dtype=torch.float32)
    of = aggregator(conflict_resolution_method=method, conflict_threshold=threshold, max_gradient_norm=0.01)
    found = []
    for seed in range(6):
        model.zero_grad()
        given = [
            SeedGradientInfo(name, losses[name], 5, Stage.SHADOWING, importance=1.0 + (name == "middle"))
            for name in shuffled(SEEDS, seed)
        ]
        with retained(losses):
            backward(model, losses, of=of, seed_losses=given)
        found.append(gradients_of(model))
        losses = model.losses(*drawn(4, dtype=torch.float32))

    assert all(all_equal(one, found[0]) for one in found)


def test_the_order_of_projection_is_that_of_rng_seed_and_step():
    """The same step gives the same bits whatever came before; other steps and seeds give other orders."""

    def trunk(step, rng_seed=0, *, before=0):
        of = aggregator(rng_seed=rng_seed)
        for earlier in range(before):
            other, losses = forked(9)
            backward(other, losses, of=of, step=100 + earlier)
        torch.manual_seed(before)
        model, losses = forked(7)
        backward(model, losses, of=of, step=step)
        return tuple(model.trunk.weight.grad.flatten().tolist())

    assert trunk(3) == trunk(3, before=2)
    assert len({trunk(step) for step in range(1, 12)}) > 1
    assert len({trunk(1, rng_seed) for rng_seed in range(12)}) > 1


def test_random_models_have_the_sum_if_nothing_is_in_conflict():
    """Any graph of shared and separate layers: without conflicts the gradients are those of the weighted sum."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(30):
        layers = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in range(5))
        x = torch.randn(4, 3, dtype=torch.float64)

        def loss(layers=layers, x=x):
            hidden = x
            for layer in draw.sample(list(layers), draw.randint(1, 4)):
                hidden = layer(hidden.detach() if draw.random() < 0.3 else hidden).tanh()
            return hidden.square().mean()

        names = tuple(f"seed{n}" for n in range(draw.randint(0, 4)))
        losses = {name: loss() for name in ("host", *names)}
        sum([losses["host"], *(0.5 * losses[name] for name in names)]).backward(retain_graph=True)
        expected = gradients_of(layers)
        layers.zero_grad()

        backward(layers, losses, names, of=aggregator(conflict_threshold=-1.0))

        found = gradients_of(layers)
        assert {name for name in found if found[name] is None} == {name for name in found if expected[name] is None}
        assert all_close(found, expected, 1e-12)


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [-60, -20, 20])
def test_scaled_losses_give_exactly_scaled_gradients(power):
    """All losses times a power of two: every gradient is exactly so much larger, in single precision, down to 1e-18."""
    found = []
    for scale in (1.0, 2.0**power):
        model, losses = forked(7, dtype=torch.float32)
        backward(model, {name: scale * loss for name, loss in losses.items()})
        found.append({name: gradient / scale for name, gradient in gradients_of(model).items()})

    assert all_equal(*found)


def test_half_precision_is_added_up_in_single():
    """70 000 equal gradients in float16: their inner products do not overflow, and a conflict is resolved."""
    weight = nn.Parameter(torch.ones(70_000, dtype=torch.float16))
    host = weight.float().sum()
    model = nn.Module()
    model.weight = weight

    found = aggregator().backward_with_aggregation(model, host, [one_loss(-2 * weight.float().sum())], 4, 1, 10)

    assert found.conflicts == 1
    assert found.dropped == ()
    assert weight.grad.dtype == torch.float16
    assert torch.equal(weight.grad, torch.ones_like(weight))
