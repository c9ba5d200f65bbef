"""Slots in models of timm and transformers, as they are published: untouched in TRAINING, grown at the end."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.trainer.seeds import found_models
from tests.trainer.seeds.hosts import assert_same_host
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import SeedSlot, attach, find_blueprint, sanity, slots_of

# The model, the place, the blueprint, and the kind of output at the place.
PLACES = [
    ("resnet", "layer2", "conv"),
    ("resnet", "bn1", "low_rank"),
    ("resnet", "global_pool", "bottleneck"),
    ("vision_transformer", "blocks", "bottleneck"),
    ("vision_transformer", "blocks.0.mlp", "low_rank"),
    ("gpt2", "transformer.h.0", "bottleneck"),
    ("gpt2", "transformer.h.1.attn", "low_rank"),  # a tuple
    ("gpt2", "transformer", "bottleneck"),  # a ModelOutput
    ("gpt2", "", "low_rank"),  # a ModelOutput with a loss
]


def output_of(model, x: torch.Tensor) -> torch.Tensor:
    """Run forward and backward from one state of the generators; return the output."""
    torch.manual_seed(11)
    out = model(x) if x.is_floating_point() else model(x, labels=x).logits
    out.square().sum().backward()
    return out.detach()


@pytest.mark.parametrize(("name", "place", "blueprint"), PLACES)
def test_a_published_model_can_grow(name, place, blueprint):
    """Names stay; TRAINING leaves outputs and gradients as they were; the grown seed changes both."""
    torch.manual_seed(3)
    plain, x = getattr(found_models, name)()
    model = copy.deepcopy(plain)
    slot = attach(model, place, SeedSlot("here"))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert same_bits(output_of(plain, x), output_of(model, x))

    example = slot.example()
    slot.plant(find_blueprint(blueprint).build(example))
    assert sanity(slot.seed, example, plain) == ""
    slot.enter(Stage.TRAINING)
    plain.zero_grad()
    model.zero_grad()
    before = output_of(plain, x)
    assert same_bits(before, output_of(model, x))
    assert_same_host(plain, model)
    assert any(parameter.grad.count_nonzero() for parameter in slot.seed.parameters()), "the seed learns"

    with torch.no_grad():
        for parameter in slot.seed.parameters():
            parameter.add_(0.1)
    other = copy.deepcopy(model)
    slots_of(other)["here"].enter(Stage.FOSSILIZED)
    assert not torch.equal(before, output_of(other, x))
    assert output_of(other, x).shape == before.shape
