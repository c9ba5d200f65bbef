"""Attaching a slot by name: any module, no name changed, refusals that help, copies with a life of their own."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.trainer.seeds.hosts import HOSTS, Shifting, mlp
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds import SeedSlot, attach, host_parameters, parameter_owners, slots_of


class Pair(NamedTuple):
    """A count first."""

    count: torch.Tensor
    values: torch.Tensor


@dataclass
class Outcome:
    """As the outputs of transformers."""

    loss: torch.Tensor
    hidden: torch.Tensor
    more: list = field(default_factory=list)


class Returning(nn.Module):
    """A module that returns its input in some wrapping."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


LOSS, COUNT = torch.tensor(1.0), torch.tensor([1, 2])
# How a module returns a tensor, and how to take it out.
WRAPPINGS = {
    "tensor": (lambda h: h, lambda out: out),
    "tuple": (lambda h: (h, None), lambda out: out[0]),
    "tuple after a count": (lambda h: (COUNT, h, "x"), lambda out: out[1]),
    "list": (lambda h: [None, h], lambda out: out[1]),
    "named tuple": (lambda h: Pair(COUNT, h), lambda out: out.values),
    "nested": (lambda h: ((LOSS, (h, h + 1)),), lambda out: out[0][1][0]),
    "dict": (lambda h: {"loss": LOSS, "hidden": h}, lambda out: out["hidden"]),
    "ordered dict": (lambda h: OrderedDict(hidden=h), lambda out: out["hidden"]),
    "dataclass": (lambda h: Outcome(LOSS, h), lambda out: out.hidden),
}


@pytest.mark.parametrize("kind", list(WRAPPINGS))
def test_the_slot_acts_on_the_first_tensor(kind):
    """Counts and a loss are passed by; the rest of the output keeps its type and values."""
    wrap, take = WRAPPINGS[kind]
    model = Returning(wrap)
    plain = copy.deepcopy(model)
    slot = attach(model, "", SeedSlot("a"))
    slot.plant(Shifting())
    slot.enter(Stage.FOSSILIZED)
    x = torch.randn(2, 3)
    out, before = model(x), plain(x)

    assert torch.equal(take(out), slot.seed(take(before)))
    assert type(out) is type(before)
    slot.enter(Stage.GERMINATED)
    assert torch.equal(take(model(x)), take(before))


@pytest.mark.parametrize("output", [None, "text", 3, COUNT, LOSS, (COUNT,), {}, Outcome])
def test_an_output_without_a_tensor_is_passed_on(output):
    """The same object; the slot has seen nothing."""
    model = Returning(lambda _: output)
    slot = attach(model, "", SeedSlot("a"))

    assert model(torch.randn(2, 3)) is output
    assert slot.last_input is None


def test_a_dormant_slot_hands_on_the_output_object():
    """No container is built anew."""
    kept = []
    model = Returning(lambda h: kept.append((h, None)) or kept[-1])
    attach(model, "", SeedSlot("a"))

    assert model(torch.randn(2, 3)) is kept[-1]


@pytest.mark.parametrize("kind", list(HOSTS))
def test_no_name_of_the_host_changes(kind):
    """Keys of the state_dict, names of parameters and buffers; and it can be loaded strictly."""
    build, make, place = HOSTS[kind]
    model = build()
    before = copy.deepcopy(model)
    attach(model, place, SeedSlot("a"))

    assert list(model.state_dict()) == list(before.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in before.named_parameters()]
    assert model.load_state_dict(before.state_dict(), strict=True)
    assert model(make()).shape == before(make()).shape
    assert slots_of(model)["a"].last_input is not None


@pytest.mark.parametrize("place", ["", "0", "0.0", "1"])
def test_sequentials_at_every_level_can_have_a_slot(place):
    """The root, one inside, and its members; each acts once in a pass, and the order of calls is the same."""
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3))
    plain = copy.deepcopy(model)
    slot = attach(model, place, SeedSlot("a"))
    calls = []
    slot.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(2, 3)

    assert torch.equal(model(x), plain(x))
    assert len(calls) == 1
    assert (len(model), len(model[0])) == (2, 2)


def test_a_module_that_calls_its_children_is_recognised():
    """Its slot lives inside the last child, so that it is not called by the loop."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            for child in self.children():
                x = child(x)
            return x

    model = Chain()
    slot = attach(model, "", SeedSlot("a"))
    slot.plant(Shifting())
    slot.enter(Stage.FOSSILIZED)
    x = torch.randn(2, 3)

    assert torch.equal(model(x), slot.seed(model.last(model.first(x))))
    assert dict(model.named_modules())["last.seed_slot_a"] is slot


REFUSED = {
    "layer.0": (lambda m: (m, "block.linears", "a"), r"did you mean block.linear"),
    "the end of a name": (lambda m: (m, "linear", "a"), r"no module 'linear'; did you mean block.linear\?"),
    "far from all": (lambda m: (m, "xyz", "a"), r"see model.named_modules\(\)"),
    "a list": (lambda m: (m, "many", "a"), r"'many' \(ModuleList\) is never called.*one of 'many.0', 'many.1'"),
    "a dict": (lambda m: (m, "named", "a"), r"'named' \(ModuleDict\) is never called.*'named.x'"),
    "an empty one": (lambda m: (m, "empty", "a"), r"'empty' \(Sequential\) is empty"),
    "the same place": (lambda m: (m, "block", "b"), r"'block' .* has slot first already; a place has one slot"),
    "the same name": (lambda m: (m, "block.linear", "first"), r"has a slot first already; choose another name"),
    "a slot": (lambda m: (m, "inside", "a"), r"'inside' is a slot itself"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_a_place_that_cannot_have_it_is_refused(kind):
    """With what is near, or what to choose; and nothing is changed."""
    model = nn.Module()
    model.block = nn.Module()
    model.block.linear = nn.Linear(3, 3)
    model.many = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
    model.named = nn.ModuleDict({"x": nn.ReLU()})
    model.empty = nn.Sequential()
    model.inside = SeedSlot("inside")
    attach(model, "block", SeedSlot("first"))
    before = [name for name, _ in model.named_modules()]
    arrange, message = REFUSED[kind]
    whole, place, name = arrange(model)

    with pytest.raises(SetupRefused, match=message):
        attach(whole, place, SeedSlot(name))
    assert [name for name, _ in model.named_modules()] == before


def test_attaching_again_returns_the_slot_that_is_there():
    """A model that one run trained is given to the next."""
    model = mlp()
    first = attach(model, "1", SeedSlot("a"))

    assert attach(model, "1", SeedSlot("a")) is first
    assert len(slots_of(model)) == 1


def test_a_copy_of_the_model_uses_its_own_slots():
    """For a moving average, or a validation on a copy: the hook of the copy has the copy's slot."""
    model = mlp()
    slot = attach(model, "1", SeedSlot("a"))
    slot.plant(Shifting())
    slot.enter(Stage.FOSSILIZED)
    other = copy.deepcopy(model).eval()
    x = torch.randn(5, 6)
    before = other(x)
    with torch.no_grad():
        slot.seed.shift.fill_(100.0)
    assert torch.equal(other(x), before)
    slots_of(other)["a"].enter(Stage.GERMINATED)

    assert not torch.equal(other(x), before)
    assert slot.stage is Stage.FOSSILIZED


def test_a_slot_takes_device_and_mode_of_its_place():
    """Attached late, it is where the module is."""
    model = nn.Sequential(nn.Linear(3, 3, device="meta"), nn.Linear(3, 3)).eval()
    slot = attach(model, "0", SeedSlot("a"))

    assert (slot.alpha.device.type, slot.training) == ("meta", False)


def test_slots_are_listed_in_module_order_with_their_depth():
    """Depth: the layers of the host before the slot. A seed's own layers do not count."""
    model = nn.Sequential(nn.Linear(3, 3), SeedSlot("b"), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), nn.Linear(3, 3))
    attach(model, "0", SeedSlot("c"))
    attach(model, "2.1", SeedSlot("a"))
    model[1].plant(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))

    assert {name: slot.layer_depth for name, slot in slots_of(model).items()} == {"c": 1, "b": 1, "a": 3}
    assert list(slots_of(model)) == ["c", "b", "a"]


def test_two_slots_of_one_name_are_refused():
    """Also if both are modules of the model."""
    with pytest.raises(SetupRefused, match="two slots of this model are named a"):
        slots_of(nn.Sequential(SeedSlot("a"), SeedSlot("a")))


def test_every_parameter_has_an_owner():
    """The seed's by the slot's name, the host's by none."""
    model = mlp()
    attach(model, "1", SeedSlot("a")).plant(Shifting())
    owners = parameter_owners(model)

    assert {name for name, owner in owners.items() if owner == "a"} == {
        "1.seed_slot_a.seed.scale",
        "1.seed_slot_a.seed.shift",
    }
    assert owners.keys() == dict(model.named_parameters()).keys()
    assert list(host_parameters(model)) == [name for name, _ in mlp().named_parameters()]


def test_shared_parameters_of_the_host_are_listed_once():
    """Tied weights, as named_parameters gives them."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight

    assert list(parameter_owners(model)) == ["0.weight", "0.bias", "1.bias"]
