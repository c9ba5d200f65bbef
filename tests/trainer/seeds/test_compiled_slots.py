"""torch.compile: alpha costs no new compilation, a stage costs one, and the bits are those of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.seeds.hosts import Shifting, assert_same_host, backward
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import SeedSlot, attach, find_blueprint


class Counting:
    """The backend `eager` or `aot_eager`, counting the graphs."""

    def __init__(self, kind: str) -> None:
        self.count = 0
        self._backend = torch._dynamo.lookup_backend(kind)

    def __call__(self, graph, inputs):
        self.count += 1
        return self._backend(graph, inputs)


def host(place: str) -> tuple[nn.Module, SeedSlot]:
    """Return a model with a slot as a module, or attached."""
    torch.manual_seed(3)
    if place == "module":
        model = nn.Sequential(nn.Linear(6, 6), SeedSlot("here"), nn.ReLU(inplace=True), nn.Linear(6, 3))
        return model, model[1]
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    return model, attach(model, "0", SeedSlot("here"))


@pytest.mark.parametrize(("kind", "place"), [("aot_eager", "module"), ("eager", "attached")])
def test_alpha_compiles_nothing_and_a_stage_once(kind, place):
    """The graphs of a whole life, without a break in any; outputs and gradients as in eager mode."""
    torch._dynamo.reset()
    model, slot = host(place)
    backend = Counting(kind)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    x = torch.randn(5, 6)
    slot.plant(find_blueprint("bottleneck").build(slot.example((5, 6))))
    graphs = {}
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.SHADOWING, Stage.PROBATIONARY):
        slot.enter(stage)
        for alpha in (0.0, 0.5, 1.0) if stage is Stage.BLENDING else (slot.alpha_value,):
            slot.set_alpha(alpha)
            model.zero_grad()
            out = backward(compiled, x)
            gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
            model.zero_grad()
            assert same_bits(out, backward(model, x)), (stage, alpha)
            assert all(same_bits(one, dict(model.named_parameters())[name].grad) for name, one in gradients.items())
        graphs[stage.name] = backend.count

    assert graphs == {"GERMINATED": 1, "TRAINING": 2, "BLENDING": 3, "SHADOWING": 4, "PROBATIONARY": 4}
    assert slot.last_input == ((5, 6), torch.float32), "the input is remembered by compiled code"


def test_a_compiled_host_is_untouched_by_a_seed_that_draws():
    """The graph breaks at the slot, and the generator is where it would be."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    other = nn.Sequential(plain[0], SeedSlot("here"), *plain[1:])
    other[1].plant(Shifting(0.5))
    other[1].enter(Stage.TRAINING)
    x = torch.randn(5, 6)
    outputs = []
    for model in (plain, other):
        for parameter in model.parameters():
            parameter.grad = None
        outputs.append(backward(torch.compile(model, backend="aot_eager", dynamic=False), x))
        outputs.append(plain[0].weight.grad.clone())

    assert same_bits(outputs[0], outputs[2])
    assert same_bits(outputs[1], outputs[3])
    assert other[1].seed.scale.grad is not None


def test_shapes_that_vary_are_remembered():
    """With shapes as symbols in the graph the slot still sees numbers."""
    torch._dynamo.reset()
    model, slot = host("module")
    compiled = torch.compile(model, backend="eager")
    for batch in (5, 7, 9):
        compiled(torch.randn(batch, 6))

        assert slot.last_input == ((batch, 6), torch.float32)
    assert slot.example().shape == (9, 6)


def test_compiled_training_keeps_the_host():
    """Against a host without a slot, compiled too."""
    torch._dynamo.reset()
    models = []
    for _ in range(2):
        model, slot = host("attached")
        models.append(model)
    slot.plant(Shifting())
    slot.enter(Stage.TRAINING)
    x = torch.randn(5, 6)
    outputs = [backward(torch.compile(model, backend="aot_eager", dynamic=False), x) for model in models]

    assert same_bits(*outputs)
    assert_same_host(*models)
