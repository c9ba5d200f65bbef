"""TRAINING: the host computes what it computes without a slot, bit for bit, and the seed learns."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.trainer.seeds.hosts import HOSTS, Shifting, assert_same_host, backward, grown, pair
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import SeedSlot

SPECIAL = [-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1e-40, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_output_has_the_bits_of_the_input(dtype):
    """Also -0.0, infinities, NaN and numbers below the normal ones."""
    h = torch.tensor(SPECIAL, dtype=dtype, requires_grad=True)
    out = grown(Stage.TRAINING)(h)

    assert same_bits(out.detach(), h.detach())
    assert out.dtype == dtype


LAYOUTS = {
    "row-major": torch.randn(2, 4, 6, 8),
    "channels_last": torch.randn(2, 4, 6, 8).contiguous(memory_format=torch.channels_last),
    "transposed": torch.randn(2, 4, 8, 6).transpose(2, 3),
    "sliced": torch.randn(2, 4, 6, 16)[..., ::2],
    "expanded": torch.randn(2, 4, 6, 1).expand(2, 4, 6, 8),
    "empty": torch.randn(0, 4),
    "scalar": torch.randn(()),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_the_output_has_the_layout_of_the_input(layout):
    """Another layout could make the next layer choose another kernel."""
    h = LAYOUTS[layout].requires_grad_()
    out = grown(Stage.TRAINING)(h)

    assert out.stride() == h.stride()
    assert torch.equal(out, h)


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("kind", list(HOSTS))
def test_the_host_is_untouched_by_a_bit(kind, drop):
    """Output, gradients, parameters, buffers and draws over three updates; also beside a seed that draws."""
    plain, other, slot, x = pair(kind, Stage.TRAINING, Shifting(drop))
    optimizers = [torch.optim.SGD(one.parameters(), 0.05, momentum=0.9) for one in (plain, other)]
    before = slot.seed.scale.item()

    for step in range(3):
        outputs = []
        for model, optimizer in zip((plain, other), optimizers, strict=True):
            optimizer.zero_grad()
            outputs.append((backward(model, x, seed=step), torch.get_rng_state()))
        assert same_bits(outputs[0][0], outputs[1][0])
        assert torch.equal(outputs[0][1], outputs[1][1]), "the generator is where it would be"
        assert_same_host(plain, other)
        for optimizer in optimizers:
            optimizer.step()

    assert slot.seed.scale.item() != before, "the seed learns"


def test_the_seed_gets_the_gradient_of_the_output():
    """As if its output were the slot's, on the detached input."""
    slot = grown(Stage.TRAINING)
    h = torch.randn(4, 3, requires_grad=True)
    weights = torch.randn(4, 3)
    (slot(h) * weights).sum().backward()

    assert same_bits(h.grad, weights)
    assert torch.allclose(slot.seed.scale.grad, (weights * h).sum())
    assert torch.allclose(slot.seed.shift.grad, weights.sum())


def test_a_host_without_gradients_still_teaches_the_seed():
    """A frozen trunk below the slot."""
    slot = grown(Stage.TRAINING)
    slot(torch.randn(4, 3)).sum().backward()

    assert slot.seed.shift.grad.item() == 12.0


def test_the_host_may_write_to_the_output_in_place():
    """The seed has saved the input; the host's activation overwrites its own copy."""
    slot = grown(Stage.TRAINING)
    h = torch.randn(4, 3, requires_grad=True)
    kept = h.detach().clone()
    torch.relu_(slot(h * 1.0)).sum().backward()

    assert torch.allclose(slot.seed.scale.grad, kept.clamp(min=0).sum())
    assert torch.equal(h.grad, (kept > 0).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_leaves_the_host_untouched(dtype):
    """The seed's output is in low precision, the slot's in the dtype of its input."""
    plain, other, slot, x = pair("mlp's first layer", Stage.TRAINING, nn.Linear(6, 6))
    with torch.autocast("cpu", dtype):
        outputs = [backward(model, x) for model in (plain, other)]

    assert same_bits(*outputs)
    assert_same_host(plain, other)
    assert slot.seed.weight.grad.dtype == torch.float32
    assert slot.seed.weight.grad.abs().sum() > 0


def test_a_wider_input_than_the_seed_computes_in_keeps_its_dtype():
    """A norm gives float32 under autocast, and the seed's linear layer bfloat16."""
    slot = grown(Stage.TRAINING, nn.Linear(6, 6))
    h = torch.randn(2, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = slot(h)
    out.sum().backward()

    assert (out.dtype, h.grad.dtype) == (torch.float32, torch.float32)
    assert torch.equal(h.grad, torch.ones(2, 6))


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_a_model_in_half_precision_is_untouched(kind):
    """Seed and host are moved together."""
    plain, other, slot, x = pair("attention", Stage.TRAINING)
    plain, other, x = (getattr(one, kind)() for one in (plain, other, x))
    outputs = [backward(model, x) for model in (plain, other)]

    assert same_bits(*outputs)
    assert_same_host(plain, other)
    assert slot.seed.scale.grad.dtype == slot.seed.scale.dtype == x.dtype


class Checkpointed(nn.Module):
    """Recompute the forward pass during the backward pass."""

    def __init__(self, inner: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self._reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self._reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_gradient_checkpointing_changes_nothing(reentrant, drop):
    """Neither for the host nor for the seed; the recomputed pass draws the same numbers."""
    torch.manual_seed(3)
    x = torch.randn(5, 6, requires_grad=True)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    with_slot = nn.Sequential(plain[0], grown(Stage.TRAINING, Shifting(drop)), *plain[1:])
    models = [copy.deepcopy(with_slot), Checkpointed(copy.deepcopy(with_slot), reentrant=reentrant)]
    outputs = [backward(model, x) for model in (plain, *models)]

    assert same_bits(outputs[0], outputs[1])
    assert same_bits(outputs[0], outputs[2])
    gradients = [[parameter.grad for parameter in model.parameters()] for model in models]
    assert all(same_bits(one, other) for one, other in zip(*gradients, strict=True))


def test_a_retained_graph_gives_the_gradients_again():
    """Twice backward over one graph adds the same gradient twice."""
    slot = grown(Stage.TRAINING)
    h = torch.randn(4, 3, requires_grad=True)
    loss = slot(h).square().sum()
    loss.backward(retain_graph=True)
    once = slot.seed.scale.grad.clone()
    loss.backward()

    assert torch.equal(slot.seed.scale.grad, 2 * once)


def test_gradients_of_gradients_reach_host_and_seed():
    """A gradient penalty through the slot."""
    slot = grown(Stage.TRAINING)
    h = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    slot.double()
    (first,) = torch.autograd.grad(slot(h).pow(3).sum(), h, create_graph=True)
    first.sum().backward()

    assert torch.allclose(h.grad, 6 * h)
    assert slot.seed.scale.grad is not None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_seed_does_not_run(context):
    """A validation gets the same object, and the price of an empty slot."""
    slot = grown(Stage.TRAINING, nn.Linear(1, 1))  # would raise
    h = torch.randn(4, 3)
    with context():
        assert slot(h) is h


def test_function_transforms_go_through():
    """torch.func.grad and vmap."""
    slot = grown(Stage.TRAINING)
    h = torch.randn(4, 3)
    one = torch.func.grad(lambda x: slot(x).square().sum())(h)
    each = torch.func.vmap(torch.func.grad(lambda x: slot(x).square().sum()))(h)

    assert torch.equal(one, 2 * h)
    assert torch.equal(each, 2 * h)


def test_two_uses_around_the_slot_add_up_as_before():
    """A residual connection past the slot: the sum of two gradients has no order."""
    layer = nn.Linear(3, 3)
    x, slot = torch.randn(4, 3), SeedSlot("a")
    gradients = []
    for stage in (Stage.DORMANT, Stage.TRAINING):
        if stage is Stage.TRAINING:
            slot.plant(Shifting())
        slot.enter(stage)
        h = layer(x)
        layer.zero_grad()
        (h.square() * slot(h).sin()).sum().backward()
        gradients.append(layer.weight.grad.clone())

    assert same_bits(*gradients)


def test_batch_statistics_of_a_seed_are_its_own():
    """A norm in the seed learns its statistics; those of the host are as without."""
    plain, other, slot, x = pair("mlp", Stage.TRAINING, nn.BatchNorm1d(6))
    outputs = [backward(model, x) for model in (plain, other)]

    assert same_bits(*outputs)
    assert slot.seed.num_batches_tracked == 1
    assert all(same_bits(one, dict(other.named_buffers())[name]) for name, one in plain.named_buffers())
