"""The gradients of several losses: weights, shared parameters, conflicts, clipping, and losses that are not finite."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.gradients.models import (
    SEEDS,
    Forked,
    drawn,
    explicit_pcgrad,
    flat_gradient,
    forked,
    gradients_of,
    infos,
    shuffled,
)
from tolariad.core.seeds.blending import alpha
from tolariad.core.seeds.stages import Stage
from tolariad.trainer.data.randomness import derived_seed, rng_states
from tolariad.trainer.gradients import MultiSeedGradientAggregator, SeedGradientInfo
from tolariad.trainer.gradients.conflicts import ANY_CONFLICT


def aggregator(**options) -> MultiSeedGradientAggregator:
    """One that resolves every conflict and does not clip."""
    return MultiSeedGradientAggregator(**({"conflict_threshold": ANY_CONFLICT, "max_gradient_norm": 0.0} | options))


def backward(model, losses, names=SEEDS, *, of=None, step=1, seed_losses=None, **options):
    """Run the backward pass of all losses."""
    given = infos(losses, names, **options) if seed_losses is None else seed_losses
    return (of or aggregator()).backward_with_aggregation(model, losses["host"], given, 5, 1, 10, step=step)


def one_loss(loss, **options) -> SeedGradientInfo:
    """An auxiliary loss in TRAINING."""
    return SeedGradientInfo("one", loss, **({"batch_size": 4, "stage": Stage.TRAINING} | options))


# -- weights -----------------------------------------------------------------------------------------------------------


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


# -- one backward pass -------------------------------------------------------------------------------------------------


def test_without_seeds_it_is_a_plain_backward():
    """The host's gradients are those of `loss.backward()`, bit for bit, and are not clipped."""
    model, losses = forked()
    (1e6 * losses["host"]).backward(retain_graph=True)
    expected = gradients_of(model)
    model.zero_grad()

    MultiSeedGradientAggregator().backward_with_aggregation(model, 1e6 * losses["host"], [], 5, 1, 10)

    assert all_equal(gradients_of(model), expected)


def test_isolated_seeds_change_no_bit_of_the_host():
    """Host and seeds have the bits of a backward pass each, and nothing counts as shared."""
    model, losses = forked(isolated=True, dtype=torch.float32)
    losses["host"].backward(retain_graph=True)
    for name in SEEDS:
        (0.5 * losses[name]).backward(retain_graph=True)
    expected = gradients_of(model)
    model.zero_grad()

    found = backward(model, losses)

    assert all_equal(gradients_of(model), expected)
    assert (found.conflicts, found.shared) == (0, 0)


def test_between_checks_the_gradients_are_the_sum():
    """Of every three steps the first is checked; the others are one backward pass of the sum."""
    checked = []
    for step in range(1, 8):
        model, losses = forked(isolated=False)
        of = aggregator(every=3)
        loss, _ = of.aggregate_losses(losses["host"], infos(losses), 5)
        loss.backward(retain_graph=True)
        expected = gradients_of(model)
        model.zero_grad()

        found = backward(model, losses, of=of, step=step)

        checked.append(found.conflicts is not None)
        if not checked[-1]:
            assert all_close(gradients_of(model), expected, 1e-15)
    assert checked == [True, False, False, True, False, False, True]


def test_gradients_are_added_to_those_that_are_there():
    """Two micro-batches give the sum of their gradients, for shared parameters in the same tensors."""
    model, losses = forked()
    backward(model, losses)
    once, memory = gradients_of(model), [parameter.grad.data_ptr() for parameter in model.parameters()]

    backward(model, model.losses(*drawn(0)))

    assert all_close(gradients_of(model), {name: 2 * gradient for name, gradient in once.items()}, 1e-15)
    assert [parameter.grad.data_ptr() for parameter in model.parameters()] == memory


# -- shared parameters -------------------------------------------------------------------------------------------------


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
    """Two seeds behind different layers are compared with the host, each on its own layer, never with each other."""
    torch.manual_seed(3)
    first, second = (nn.Linear(3, 3, bias=False, dtype=torch.float64) for _ in range(2))
    x = torch.randn(4, 3, dtype=torch.float64)
    near, far = first(x), second(first(x).detach())
    host = near.sum() + far.sum()
    model = nn.ModuleList([first, second])
    expected = [torch.zeros_like(first.weight), torch.zeros_like(second.weight)]

    # Each seed wants the opposite of the host on its layer, so all of it is projected away.
    seeds = [one_loss(-3 * near.sum()), SeedGradientInfo("two", -5 * far.sum(), 4, Stage.SHADOWING)]
    found = aggregator().backward_with_aggregation(model, host, seeds, 4, 1, 10)

    for gradient, layer, output in zip(expected, (first, second), (near, far), strict=True):
        gradient += torch.autograd.grad(first(x).sum() if output is near else second(first(x).detach()).sum(), layer.weight)[0]
        assert torch.allclose(layer.weight.grad, gradient, rtol=1e-12)
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


@pytest.mark.parametrize("method", ["pcgrad", "average", "priority", "torchjd:PCGrad", "torchjd:Random"])
def test_no_global_generator_is_touched(method):
    """The draws of the data and of dropout stay what they were."""
    if method.startswith("torchjd"):
        pytest.importorskip("torchjd", reason="TorchJD is not installed (extra aggregators)")
    model, losses = forked(7)
    before = rng_states()

    backward(model, losses, of=aggregator(conflict_resolution_method=method))

    after = rng_states()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]
    assert all(map(_same, before["numpy"], after["numpy"]))


def test_torchjds_aggregators_give_their_own_result():
    """The shared parameters get what the aggregator makes of the rows, and draws depend on the step alone."""
    aggregation = pytest.importorskip("torchjd.aggregation", reason="TorchJD is not installed (extra aggregators)")
    model, losses = forked(7, names=("left",))
    trunk = list(model.trunk.parameters())
    rows = torch.stack([flat_gradient(losses["host"], trunk), flat_gradient(0.5 * losses["left"], trunk)])

    for name in ("MGDA", "PCGrad", "AlignedMTL"):
        model.zero_grad()
        with retained(losses):
            backward(model, losses, ("left",), of=aggregator(conflict_resolution_method=f"torchjd:{name}"))
        found = torch.cat([parameter.grad.flatten() for parameter in trunk])
        assert torch.allclose(found, getattr(aggregation, name)()(rows), rtol=1e-9), name
        losses = model.losses(*drawn(7, ("left",)))

    draws = []
    for step in (1, 1, 2):
        model.zero_grad()
        torch.manual_seed(len(draws))
        losses = model.losses(*drawn(7, ("left",)))
        torch.manual_seed(len(draws))
        backward(model, losses, ("left",), of=aggregator(conflict_resolution_method="torchjd:Random"), step=step)
        draws.append(gradients_of(model)["trunk.weight"])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nothing", "TorchJD has no aggregator 'Nothing'; it has AlignedMTL"),
        ("GradVac", "remembers earlier steps"),
        ("Constant", "needs arguments"),
        ("Aggregator", "TorchJD has no aggregator"),
    ],
)
def test_torchjds_names_that_cannot_be_used_are_refused(name, said):
    """The message says why, and what there is."""
    pytest.importorskip("torchjd", reason="TorchJD is not installed (extra aggregators)")

    with pytest.raises(ValueError, match=said):
        aggregator(conflict_resolution_method=f"torchjd:{name}")


def test_without_torchjd_the_message_names_the_extra(monkeypatch):
    """An installation without the extra says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "torchjd", None)

    with pytest.raises(ValueError, match=r"pip install 'tolariad\[aggregators\]'"):
        aggregator(conflict_resolution_method="torchjd:MGDA")


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


# -- not finite --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_seed_with_a_bad_loss_takes_no_part(value):
    """The gradients are those without the seed, bit for bit, and it is counted."""
    model, losses = forked()
    with retained(losses):
        backward(model, losses, ("left", "right"))
    expected = gradients_of(model)
    model.zero_grad()
    losses["middle"] = losses["middle"] * value

    found = backward(model, losses)

    assert found.dropped == ("middle",)
    assert found.telemetry()["num_active_seeds"] == 2.0
    assert found.telemetry()["seeds_dropped"] == 1.0
    assert all_equal(gradients_of(model), expected)


def test_a_seed_with_a_bad_gradient_takes_no_part_at_a_check():
    """Its loss is finite, its gradient is not: the shared parameters and its own get nothing of it."""
    model, losses = forked(names=("left", "right"))
    with retained(losses):
        backward(model, losses, ("left",))
    expected = gradients_of(model)
    model.zero_grad()
    # The root of zero: finite, with an infinite derivative.
    bad = (losses["right"] - losses["right"].detach()).sqrt()

    found = backward(model, losses, seed_losses=[*infos(losses, ("left",)), SeedGradientInfo("right", bad, 5, 5)])

    assert found.dropped == ("right",)
    assert all_close(gradients_of(model), expected, 1e-15)
    assert model.seeds["right"].weight.grad is None


@pytest.mark.parametrize("isolated", [True, False])
def test_a_host_that_is_not_finite_passes_through(isolated):
    """The detector must see it: the host's gradients and its loss are not finite, also after clipping."""
    model, losses = forked(isolated=isolated)
    losses["host"] = losses["host"] * math.nan

    found = backward(model, losses, of=MultiSeedGradientAggregator())

    assert math.isnan(found.telemetry()["host_loss"])
    assert not gradients_of(model)["head.weight"].isfinite().any()
    assert not gradients_of(model)["trunk.weight"].isfinite().any()
    if isolated:
        assert all(model.seeds[name].weight.grad.isfinite().all() for name in SEEDS)


# -- clipping ----------------------------------------------------------------------------------------------------------


def test_host_and_seeds_are_clipped_apart():
    """Each owner's gradients are those that torch's own clipping makes of them. A small one is not touched."""
    model, losses = forked(isolated=True)
    losses["left"] = 1e3 * losses["left"]
    losses["host"] = 1e3 * losses["host"]
    of = MultiSeedGradientAggregator(max_gradient_norm=2.0)
    with retained(losses):
        backward(model, losses, of=aggregator())
    expected = gradients_of(model)
    torch.nn.utils.clip_grad_norm_([*model.trunk.parameters(), *model.head.parameters()], 2.0)
    torch.nn.utils.clip_grad_norm_(model.seeds["left"].parameters(), 2.0)
    clipped = gradients_of(model)
    model.zero_grad()

    backward(model, losses, of=of)

    assert all_close(gradients_of(model), clipped, 1e-14)
    assert torch.equal(gradients_of(model)["seeds.right.weight"], expected["seeds.right.weight"])


def test_owners_can_be_named():
    """A seed whose parameters the host reaches too, as in BLENDING, is still clipped on its own."""
    model, losses = forked(isolated=True, names=("left",))
    losses["host"] = losses["host"] + 1e3 * losses["left"]
    owners = {"left": list(model.seeds["left"].parameters())}

    MultiSeedGradientAggregator(max_gradient_norm=2.0).backward_with_aggregation(
        model, losses["host"], infos(losses, ("left",)), 5, 1, 10, owners=owners
    )

    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in owners["left"]])
    assert norm.item() == pytest.approx(2.0, rel=1e-5)


def test_a_norm_of_zero_clips_nothing():
    """0 is off."""
    model, losses = forked()
    losses = {name: 1e6 * loss for name, loss in losses.items()}
    backward(model, losses, of=aggregator(max_gradient_norm=0.0))

    assert torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]) > 1e6


# -- the device --------------------------------------------------------------------------------------------------------


class Waits(TorchDispatchMode):
    """Counts the operations that bring a value to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.name() in {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("isolated", [True, False])
def test_no_seed_waits_for_the_device(monkeypatch, isolated):
    """The number of transfers to the host is the same for 1 and for 12 seeds: losses, inner products, norms."""
    transfers = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: transfers.append(1) or original(tensor))
    monkeypatch.setattr(torch, "randperm", lambda size, **_: torch.arange(size))
    counts = []
    for number in (1, 12):
        names = tuple(f"seed{n}" for n in range(number))
        model, losses = forked(names=names, isolated=isolated)
        transfers.clear()
        with Waits() as waits:
            backward(model, losses, names, of=MultiSeedGradientAggregator(0.0, conflict_resolution_method="priority"))
        counts.append((len(transfers), waits.count))

    assert counts == [(2 if isolated else 3, 0)] * 2


def test_buffers_are_used_again():
    """While the same losses share the same parameters, the rows lie in the same memory."""
    of, model = aggregator(), Forked()
    pointers = set()
    for batch in range(3):
        model.zero_grad()
        backward(model, model.losses(*drawn(batch)), of=of)
        pointers.add(tuple(block.rows.data_ptr() for block in of._blocks._blocks))
    assert len(pointers) == 1

    backward(model, model.losses(*drawn(5)), ("left",), of=of)
    assert len(of._blocks._blocks[0].losses) == 2


# -- helpers -----------------------------------------------------------------------------------------------------------


class retained:  # noqa: N801 - reads as a statement
    """In the block, backward passes keep the graph of these losses."""

    def __init__(self, losses) -> None:
        self.original = torch.autograd.backward

    def __enter__(self) -> None:
        torch.autograd.backward = lambda *given, **more: self.original(*given, **(more | {"retain_graph": True}))

    def __exit__(self, *_) -> None:
        torch.autograd.backward = self.original


def all_equal(found, expected) -> bool:
    """Whether all gradients have the same bits."""
    return found.keys() == expected.keys() and all(_equal(found[name], expected[name]) for name in found)


def all_close(found, expected, tolerance) -> bool:
    """Whether all gradients are the same, relative to their norm."""
    return all(
        (found[name] is None and expected[name] is None)
        or (found[name] - expected[name]).norm() <= tolerance * max(expected[name].norm(), 1e-30)
        for name in expected
    )


def _equal(one, other) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _same(one, other) -> bool:
    return bool((one == other).all()) if hasattr(one, "shape") else one == other


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
