"""The groups of units that depend on each other, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.trainer.pruning import models
from tests.trainer.pruning.models import example
from tests.trainer.pruning.without import same_without
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import PruningRefused, removed
from tolariad.trainer.pruning.verify import find_groups, same_outputs
from tolariad.trainer.tasks.chars import CharacterModel

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

CHANNEL, HEAD = UnitKind.CHANNEL, UnitKind.HEAD
HEAD_ORDER = "its rows are not ordered by queries, keys and values, then by heads"
OUTPUTS = "its channels are outputs of the model"
# For each model its groups (kind, units, channels in each), and what is refused with a part of the reason.
CASES = {
    models.Residual: ({"a": (CHANNEL, 8, 1)}, {"out": OUTPUTS}),
    models.Concatenated: ({"a": (CHANNEL, 4, 1), "b": (CHANNEL, 6, 1)}, {"c": OUTPUTS}),
    models.Grouped: ({"a": (CHANNEL, 4, 2)}, {"c": OUTPUTS}),
    models.Depthwise: ({"a": (CHANNEL, 8, 1), "t": (CHANNEL, 6, 1)}, {"c": OUTPUTS}),
    models.InGroups: (
        {},
        {"a": "g is a convolution in 2 groups", "g": "g is a convolution in 2 groups", "c": OUTPUTS},
    ),
    models.Gated: ({"a": (CHANNEL, 8, 2)}, {"c": OUTPUTS}),
    models.Normalised: ({"b": (CHANNEL, 16, 1)}, {"a": "norm normalises over its channels together", "c": OUTPUTS}),
    models.Tied: ({"f": (CHANNEL, 16, 1), "g": (CHANNEL, 8, 1)}, {"h": OUTPUTS}),
    models.TiedElsewhere: (
        {"f": (CHANNEL, 16, 1)},
        {
            "g": "h.weight is tied to e.weight, which does not depend on these channels",
            "h": OUTPUTS,
            "e": "no linear or convolutional layer has its channels",
        },
    ),
    models.TiedLayers: ({}, {"a": "is tied", "b": "is tied", "c": "is tied", "d": OUTPUTS}),
    models.Twice: ({"a": (CHANNEL, 6, 1)}, {"c": OUTPUTS}),
    models.Positioned: (
        {"a": (CHANNEL, 6, 1)},
        {"the model": "is a Positioned, whose channels are not known", "c": OUTPUTS},
    ),
    models.Flipped: ({}, {"a": "masked and removed they give different outputs", "c": OUTPUTS}),
    models.Saturating: ({"a": (CHANNEL, 6, 1)}, {"c": OUTPUTS}),
    models.Softened: ({}, {"a": "masked and removed they give different outputs", "c": OUTPUTS}),
    models.Parametrised: ({}, {"a": "a computes its weight (a parametrization)", "c": OUTPUTS}),
    models.Attention: ({"qkv": (HEAD, 4, 2)}, {"proj": OUTPUTS}),
    models.Interleaved: (
        {},
        {"qkv": HEAD_ORDER, "proj": OUTPUTS},
    ),
    models.SplitAttention: ({"q_proj": (HEAD, 2, 4)}, {"out_proj": OUTPUTS}),
    models.Encoder: (
        {"layer.self_attn": (HEAD, 2, 4), "layer.linear1": (CHANNEL, 16, 1)},
        {"layer.linear2": "normalises over its channels together", "out": OUTPUTS},
    ),
    models.Unbiased: (
        {"layer.self_attn": (HEAD, 2, 4), "layer.linear1": (CHANNEL, 16, 1)},
        {"layer.linear2": "normalises over its channels together", "out": OUTPUTS},
    ),
    models.Miscounted: ({}, {"q_proj": HEAD_ORDER, "out_proj": OUTPUTS}),
    models.Beside: (
        {"attention.query": (HEAD, 4, 2)},
        {
            "before": "norm normalises over its channels together",
            "out": OUTPUTS,
            **{f"unused.{name}_proj": "the model's outputs do not depend on it" for name in ("q", "k", "v", "out")},
        },
    ),
    models.Unknown: (
        {},
        {
            "pair": "is a Bilinear, whose channels are not known",
            "a": "its channels are a single unit",
            "b": "its channels are a single unit",
            "c": OUTPUTS,
        },
    ),
}


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_units_are_those_that_depend_on_each_other(kind):
    """One model for each way in which layers depend on each other. What the graph gets wrong is refused."""
    groups, refused = CASES[kind]
    found = find_groups(kind(), (example(kind.kind),))

    assert {group.name: (group.kind, group.width, group.channels) for group in found.groups} == groups
    reasons: dict[str, str] = {}
    for one in found.refused:
        reasons[one.name] = f"{reasons.get(one.name, '')} {one.why}"
    assert reasons.keys() == refused.keys()
    for name, why in refused.items():
        assert why in reasons[name]


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "kind", [kind for kind, (groups, _) in CASES.items() if groups], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_masked_and_removed_give_the_same_outputs_and_gradients(kind, mode, seed):
    """Any units of all groups at once, with the model's own weights in float64: outputs and gradients."""
    torch.manual_seed(seed)
    model = kind().double().train(mode == "train")
    inputs = example(kind.kind, seed, 6)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    groups = [group for group in find_groups(model, (inputs,)).groups if not group.fixed]

    same_without(model, inputs, groups, seed)


def test_the_modules_of_a_smaller_model_say_its_sizes():
    """out_channels, num_features and the like, so that a copy of the module and its description are right."""
    model = models.Depthwise()
    groups = find_groups(model, (example(models.IMAGES),)).groups
    remove(model, removed(groups, {"a": (0, 5), "t": (1,)}))

    assert (model.a.out_channels, model.d.groups, model.d.in_channels, model.d.out_channels) == (6, 6, 6, 6)
    assert (model.t.in_channels, model.t.out_channels, model.norm.num_features) == (6, 5, 5)
    assert (model.p.num_parameters, model.c.in_channels) == (5, 5)


def test_finding_groups_changes_nothing(seed):
    """Neither weights, statistics, mode and gradients of the model, nor any generator, nor the inputs."""
    torch.manual_seed(seed)
    model, inputs = models.Residual(), example(models.IMAGES)
    model(inputs).sum().backward()
    before = copy.deepcopy([*model.state_dict().values(), *(one.grad for one in model.parameters()), inputs])
    drawn = torch.get_rng_state()
    model.b.weight.requires_grad_(False)
    one, other = (find_groups(model, (inputs,)) for _ in range(2))

    after = [*model.state_dict().values(), *(each.grad for each in model.parameters()), inputs]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert model.training
    assert not model.b.weight.requires_grad
    assert torch.equal(drawn, torch.get_rng_state())
    assert one == other


@pytest.mark.parametrize("protected", ["b", "b.weight"])
def test_a_protected_module_is_in_no_group(protected):
    """Such as a seed that is not fossilised: the channels that it shares with others stay too."""
    found = find_groups(models.Residual(), (example(models.IMAGES),), protected=[protected])

    assert found.groups == ()
    assert ("a", f"{protected} may not be pruned") in [(one.name, one.why) for one in found.refused]


def test_heads_of_a_protected_layer_are_in_no_group():
    """A head has no part that may be cut alone."""
    found = find_groups(models.SplitAttention(), (example(models.ROWS),), protected=["out_proj"])

    assert found.groups == ()


def test_the_built_in_language_model_prunes_its_feed_forward_layers():
    """Its heads are written into its code, and its width is normalised: both are refused."""
    found = find_groups(CharacterModel(), (torch.zeros(1, 64, dtype=torch.int64),))

    assert [group.name for group in found.groups] == ["blocks.0.feed_forward.0", "blocks.1.feed_forward.0"]
    assert {one.name for one in found.refused} >= {"blocks.0.attention", "blocks.0.mixed", "head"}


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        raise RuntimeError("the data is at another place")


def test_a_model_that_cannot_be_traced_is_refused():
    """With the error of the model's own code."""
    with pytest.raises(PruningRefused, match="cannot be traced: RuntimeError: the data is at another place"):
        find_groups(Untraceable(), (example(models.ROWS),))


def test_different_outputs_are_told_apart():
    """The comparison can fail: by numbers, by shapes, by an error, and by NaN on both sides."""
    one, other = nn.Linear(8, 3), nn.Linear(8, 3)
    inputs = (example(models.ROWS),)

    assert same_outputs(one, copy.deepcopy(one), inputs, 1e-9) == ""
    assert "different outputs" in same_outputs(one, other, inputs, 1e-9)
    assert "other shapes" in same_outputs(one, nn.Linear(8, 4), inputs, 1e-9)
    assert "fails: RuntimeError" in same_outputs(one, nn.Linear(7, 3), inputs, 1e-9)
    nn.init.constant_(one.bias, float("nan"))
    assert "different outputs" in same_outputs(one, copy.deepcopy(one), inputs, 1e-9)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [({"x": (0,)}, "there is no group 'x'; the groups are a"), ({"a": (8,)}, "a has units 0 to 7, not 8")],
)
def test_an_unknown_unit_is_refused(chosen, message):
    """By name, with those that there are."""
    groups = find_groups(models.Residual(), (example(models.IMAGES),)).groups

    with pytest.raises(PruningRefused, match=message):
        removed(groups, chosen)
