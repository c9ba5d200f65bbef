"""One backward pass for several losses: separate owners, losses that are not finite, clipping, waiting for a device."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.gradients.models import (
    SEEDS,
    Forked,
    aggregator,
    all_close,
    all_equal,
    backward,
    drawn,
    forked,
    gradients_of,
    infos,
    retained,
)
from tolariad.trainer.gradients import MultiSeedGradientAggregator, SeedGradientInfo
from tolariad.trainer.gradients.clipping import gradients_of as gradients_of_all
from tolariad.trainer.gradients.clipping import norms_of
from tolariad.trainer.gradients.sources import weigh

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


@pytest.mark.parametrize("isolated", [True, False])
def test_a_loss_scale_scales_every_gradient(isolated):
    """With a scale of 2^16, as in an fp16 run, all gradients are exactly so much larger."""
    found = []
    for scale in (1.0, 2.0**16):
        model, losses = forked(6, isolated=isolated, dtype=torch.float32)
        weighed = weigh(losses["host"], infos(losses), 5, (1, 10), {})
        aggregator().add_gradients(losses["host"], weighed, 1, scale=lambda first, by=scale: first * by)
        found.append({name: gradient / scale for name, gradient in gradients_of(model).items()})

    assert all_equal(*found)


def test_gradients_are_added_to_those_that_are_there():
    """Two micro-batches give the sum of their gradients, for shared parameters in the same tensors."""
    model, losses = forked()
    backward(model, losses)
    once, memory = gradients_of(model), [parameter.grad.data_ptr() for parameter in model.parameters()]

    backward(model, model.losses(*drawn(0)))

    assert all_close(gradients_of(model), {name: 2 * gradient for name, gradient in once.items()}, 1e-15)
    assert [parameter.grad.data_ptr() for parameter in model.parameters()] == memory


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


def test_half_precision_gradients_have_a_norm_beyond_its_range():
    """A norm of 79 373 has no float16; it is measured in single precision."""
    parameter = torch.nn.Parameter(torch.zeros(70_000, dtype=torch.float16))
    parameter.grad = torch.full_like(parameter, 300.0)

    assert norms_of([gradients_of_all([parameter])]).tolist() == pytest.approx([300 * 70_000**0.5], rel=1e-3)


def test_norms_on_the_host_are_those_of_a_device(monkeypatch, seed):
    """Owner by owner, to 1e-12: sparse, half and double gradients, parameters without one, an owner without any."""
    torch.manual_seed(seed)
    table = torch.nn.Embedding(9, 4, sparse=True)
    table(torch.tensor([1, 5, 1])).square().sum().backward()
    parameters = [torch.nn.Parameter(torch.zeros(300, dtype=one)) for one in (torch.float64, torch.float32)]
    parameters += [torch.nn.Parameter(torch.zeros(7, 3, dtype=torch.bfloat16)), torch.nn.Parameter(torch.zeros(2))]
    for one in parameters[:-1]:
        one.grad = torch.randn_like(one)
    owners = [gradients_of_all(found) for found in (parameters, table.parameters(), (), parameters[:1])]
    on_host = norms_of(owners)
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False))

    assert [len(found) for found in owners] == [3, 1, 0, 1]
    assert on_host.tolist() == pytest.approx(norms_of(owners).tolist(), rel=1e-12)


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
    # As on a device: on the host nothing has to be transferred.
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False))
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
