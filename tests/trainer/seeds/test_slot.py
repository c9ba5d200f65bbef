"""A slot beside its stages: what it holds, remembers and hides, and how it moves with its model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.trainer.seeds.hosts import Shifting, grown
from tolariad.core.calc.seeds.stages import PLANTED, Stage
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds import SeedSlot


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in PLANTED])
def test_an_empty_slot_hands_on_the_same_object(stage):
    """No copy, no node of the graph, whatever stage without a seed it is in."""
    slot = SeedSlot("a")
    slot.enter(stage)
    h = torch.randn(2, 3, requires_grad=True)

    assert slot(h) is h


def test_a_germinated_seed_is_not_in_the_graph():
    """The slot holds it and returns the same object; the seed is not run."""
    seed = nn.Linear(1, 1)  # of a shape that would raise
    slot = grown(Stage.GERMINATED, seed)
    h = torch.randn(2, 3)

    assert slot(h) is h
    assert slot.seed is seed


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 65, "ü"])
def test_names_that_files_could_not_carry_are_refused(name):
    """The name is part of names of parameters."""
    with pytest.raises(SetupRefused, match="1 to 64 letters"):
        SeedSlot(name)


def test_example_is_like_the_last_input():
    """Zeros of the newest shape and dtype."""
    slot = SeedSlot("a")
    slot(torch.randn(4, 5))
    slot(torch.randn(2, 3, 7, dtype=torch.float64))

    assert slot.last_input == ((2, 3, 7), torch.float64)
    assert torch.equal(slot.example(), torch.zeros(2, 3, 7, dtype=torch.float64))
    assert slot.example().dtype == torch.float64


def test_example_of_a_recorded_input_needs_no_forward_pass():
    """A restart builds the same seed from shape and dtype."""
    example = SeedSlot("a").example((4, 8), "bfloat16")

    assert (example.shape, example.dtype) == ((4, 8), torch.bfloat16)


@pytest.mark.parametrize("dtype", ["int64", "float33", "zeros"])
def test_example_refuses_a_dtype_that_cannot_learn(dtype):
    """By name, as it came in a message."""
    with pytest.raises(SetupRefused, match="not a floating-point dtype"):
        SeedSlot("a").example((2,), dtype)


def test_example_without_an_input_says_what_to_do():
    """The place may never be called."""
    with pytest.raises(SetupRefused, match=r"slot a has not seen an input yet.*choose another"):
        SeedSlot("a").example()


def test_example_under_autocast_is_for_float32_parameters():
    """The input is bfloat16 there, but optimizers need wide parameters."""
    model = nn.Sequential(nn.Linear(3, 3), SeedSlot("a"))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 3)).dtype == torch.bfloat16

    assert model[1].example().dtype == torch.float32


def test_example_of_a_half_model_is_half():
    """Without autocast parameters have the dtype of the input."""
    model = nn.Sequential(nn.Linear(3, 3), SeedSlot("a")).half()
    model(torch.randn(2, 3).half())

    assert model[1].example().dtype == torch.float16


def test_a_slot_holds_one_seed():
    """A second one is refused until the first is cleared."""
    slot = grown(Stage.TRAINING)
    with pytest.raises(SetupRefused, match="slot here holds a seed already, in stage TRAINING"):
        slot.plant(Shifting())
    slot.clear()

    assert (slot.seed, slot.stage, list(slot.parameters())) == (None, Stage.DORMANT, [])
    slot.plant(Shifting())


@pytest.mark.parametrize("stage", sorted(PLANTED))
def test_a_stage_that_needs_a_seed_is_refused_without(stage):
    """The slot stays as it was."""
    slot = SeedSlot("a")
    with pytest.raises(SetupRefused, match=f"no seed.*{stage.name}"):
        slot.enter(stage)

    assert slot.stage is Stage.DORMANT


def test_entering_a_stage_sets_alpha():
    """0 up to the beginning of BLENDING, 1 from SHADOWING on."""
    slot = grown(Stage.GERMINATED)
    values = {}
    for stage in sorted(PLANTED):
        slot.enter(stage)
        values[stage] = (slot.alpha_value, slot.alpha.item())

    ones = {Stage.SHADOWING, Stage.PROBATIONARY, Stage.FOSSILIZED}
    assert values == {stage: (1.0, 1.0) if stage in ones else (0.0, 0.0) for stage in PLANTED}


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_alpha_stays_within_its_range(value):
    """A wrong value changes nothing."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(0.5)
    with pytest.raises(ValueError, match="alpha must be from 0 to 1"):
        slot.set_alpha(value)

    assert slot.alpha.item() == 0.5


def test_nothing_of_the_slot_is_captured_but_the_seed():
    """Alpha is no parameter, no buffer and no key; an empty slot adds no key."""
    slot = SeedSlot("a")
    assert slot.state_dict() == {}
    slot.plant(Shifting())
    slot.enter(Stage.BLENDING)

    names = {"seed.scale", "seed.shift"}
    assert set(slot.state_dict()) == names == {name for name, _ in slot.named_parameters()}
    assert list(slot.buffers()) == []


def test_a_seed_is_restored_from_a_state_dict():
    """Strictly: the keys are those of the seed."""
    one, other = grown(Stage.TRAINING), grown(Stage.TRAINING)
    with torch.no_grad():
        one.seed.scale.fill_(7.0)
    other.load_state_dict(one.state_dict())

    assert other.seed.scale.item() == 7.0


def test_a_seed_follows_the_mode_of_its_model():
    """Planted in eval mode it is in eval mode; train() reaches it."""
    model = nn.Sequential(SeedSlot("a")).eval()
    model[0].plant(nn.Dropout())
    assert not model[0].seed.training
    model.train()

    assert model[0].seed.training


@pytest.mark.parametrize("move", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.double()])
def test_alpha_keeps_its_precision(move):
    """A model in half precision blends by the same alpha."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(0.3)
    move(slot)

    assert slot.alpha.dtype == torch.float32
    assert slot.alpha.item() == pytest.approx(0.3, abs=1e-7)
    assert slot.seed.scale.dtype != torch.float32


def test_alpha_moves_to_the_device_of_the_model():
    """There and back, also by way of a device without values."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(0.25)
    slot.to("meta")
    assert slot.alpha.device.type == slot.seed.scale.device.type == "meta"
    slot.to_empty(device="cpu")

    assert (slot.alpha.device.type, slot.alpha.item()) == ("cpu", 0.25)


def test_a_deep_copy_has_a_life_of_its_own():
    """Stage, alpha, seed and the remembered input are copies."""
    slot = grown(Stage.BLENDING)
    slot(torch.randn(2, 3))
    other = copy.deepcopy(slot)
    other.set_alpha(0.5)
    with torch.no_grad():
        other.seed.scale.zero_()
    other(torch.randn(4, 4))

    assert (slot.alpha.item(), slot.seed.scale.item(), slot.last_input[0]) == (0.0, 1.5, (2, 3))
    assert (other.alpha.item(), other.stage, other.last_input[0]) == (0.5, Stage.BLENDING, (4, 4))


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED])
def test_a_seed_that_changes_the_shape_is_named(stage):
    """Broadcasting would hide it."""
    slot = grown(stage, nn.Linear(3, 1))
    with pytest.raises(RuntimeError, match=r"seed in slot here returned shape \(2, 1\) for an input of shape \(2, 3\)"):
        slot(torch.randn(2, 3))
