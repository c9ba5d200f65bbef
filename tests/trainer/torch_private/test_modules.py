"""Buffers and parameters that a module holds itself, and the classes of torch's layers, in both ways."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.torch_private.ways import WAYS, module

KINDS = {
    "NORMS": [nn.BatchNorm1d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), nn.InstanceNorm2d(2)],
    "BATCH_NORMS": [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.SyncBatchNorm(2)],
    "INSTANCE_NORMS": [nn.InstanceNorm1d(2), nn.InstanceNorm3d(2)],
    "CONVOLUTIONS": [nn.Conv1d(1, 1, 1), nn.Conv3d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1)],
    "TRANSPOSED_CONVOLUTIONS": [nn.ConvTranspose1d(1, 1, 1), nn.ConvTranspose3d(1, 1, 1)],
}


class Held(nn.Module):
    """Buffers of every kind, two names for one of them, a parameter that is None, a child with the same names."""

    def __init__(self, *, child: bool = True) -> None:
        super().__init__()
        self.register_buffer("saved", torch.ones(2))
        self.register_buffer("left_out", torch.zeros(3), persistent=False)
        self.register_buffer("again", self.saved)
        self.register_buffer("none", None)
        self.weight = nn.Parameter(torch.ones(1))
        self.register_parameter("bias", None)
        if child:
            self.child = Held(child=False)


@pytest.mark.parametrize("way", WAYS)
def test_own_buffers_and_parameters_are_found_by_name(way):
    """Those of children are not; names without a tensor are known the private way only."""
    of_way, held = module("modules", way), Held()
    buffers, parameters = of_way.buffers_of(held), of_way.parameters_of(held)
    nothing = {"none"} if way == "private" else set()
    assert buffers.keys() == {"saved", "left_out", "again"} | nothing
    assert buffers["saved"] is buffers["again"] is held.saved
    assert parameters["weight"] is held.weight
    assert parameters.keys() == {"weight"} | ({"bias"} if way == "private" else set())
    assert of_way.transient_names(held) == ["left_out"]


@pytest.mark.parametrize("way", WAYS)
def test_a_buffer_is_put_in_place_of_another_or_anew(way):
    """A checkpoint of the module then holds it, unless it is transient; an empty one stays a buffer."""
    of_way, held = module("modules", way), Held(child=False)
    wide = torch.full((4,), 2.0)
    of_way.put_buffer(held, "saved", wide)
    of_way.put_buffer(held, "left_out", None)
    of_way.put_buffer(held, "new", torch.zeros(1))
    of_way.put_buffer(held, "passing", torch.zeros(1), transient=True)
    of_way.put_buffer(held, "none", torch.ones(1))
    assert held.saved is wide
    assert held.left_out is None
    assert list(held.state_dict()) == ["weight", "saved", "again", "none", "new"]
    assert {name for name, _ in held.named_buffers(remove_duplicate=False)} == {
        *("saved", "again", "none", "new", "passing")
    }
    held.left_out = torch.ones(1)
    assert "left_out" not in held.state_dict()


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_keeps_its_place_in_the_order(way):
    """Optimizers and checkpoints go by the order of parameters."""
    of_way, layer = module("modules", way), nn.Linear(3, 2)
    smaller = nn.Parameter(torch.zeros(1, 3))
    of_way.put_parameter(layer, "weight", smaller)
    assert layer.weight is smaller
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_torchs_layers_are_recognised(name, way):
    """Every class of a kind, and no other one. A user's own subclass of the private base is known the private way."""
    kinds = getattr(module("modules", way), name)
    assert all(isinstance(layer, kinds) for layer in KINDS[name])
    others = [layer for other in KINDS for layer in KINDS[other] if ("NORM" in other) is not ("NORM" in name)]
    assert not any(
        isinstance(layer, kinds) for layer in (*others, nn.Linear(1, 1), nn.LayerNorm(1), nn.GroupNorm(1, 1))
    )
    assert all(getattr(nn, one.__name__, None) is one for one in kinds) == (way == "public")


def test_a_module_is_told_when_it_moves():
    """Also as a child; with the function that torch applies."""
    from tolariad.trainer.torch_private.modules import ToldOfMoves

    class Told(ToldOfMoves):
        seen = ()

        def moved(self, to):
            self.seen = (*self.seen, to(torch.zeros(())).dtype)

    told = Told()
    nn.Sequential(nn.Linear(1, 1), told).double().half()
    assert told.seen == (torch.float64, torch.float16)
