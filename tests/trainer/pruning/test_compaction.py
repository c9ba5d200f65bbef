"""Compaction: the smaller model is the masked one, and trains on as it would have."""

from __future__ import annotations

import copy

import pytest
import torch
from msgspec.structs import replace

from tests.trainer.pruning import models
from tests.trainer.pruning.models import IMAGES, ROWS, example
from tests.trainer.pruning.training import CHOSEN, OPTIMIZERS, controlled, owned, small, step
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.average import Average
from tolariad.trainer.pruning.compaction import compact, sizes, try_compaction
from tolariad.trainer.pruning.graph import trace
from tolariad.trainer.pruning.masks import apply_masks, masks_of
from tolariad.trainer.pruning.plan import plan_of, read_plan
from tolariad.trainer.pruning.trial import trial_of
from tolariad.trainer.pruning.units import PruningRefused
from tolariad.trainer.pruning.verify import find_groups

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

INPUTS = (example(IMAGES),)


def masked(seed, make, dtype=torch.float64, chosen=CHOSEN):
    """Return a model that was trained with masks for some steps, and all that belongs to it."""
    model, groups = small(seed, dtype)
    optimizer, average = make(model.parameters()), Average(model, 0.9)
    for number in range(5):
        step(model, optimizer, number)
        average.update()
    held = apply_masks(model, masks_of(model, groups, chosen), owned(optimizer), average)
    for number in range(5, 10):
        step(model, optimizer, number, held)
        average.update()
    return model, groups, optimizer, average, held


def removed_as_planned(model, groups, masks, optimizer, rates, inputs=INPUTS, average=None):
    """Do what an order does: the plan of these masks is tried on copies, then carried out."""
    plan = read_plan(plan_of(model, groups, masks.units, inputs).text)
    assert plan.masks == masks
    try_compaction(model, plan, inputs)
    compact(model, plan, owned(optimizer), rates=rates, average=average)


def kept(tensor, dims):
    """Return what stays of a masked tensor."""
    for dim, indices in dims.items():
        stays = [index for index in range(tensor.shape[dim]) if index not in indices]
        tensor = tensor.index_select(dim, torch.tensor(stays))
    return tensor


def difference(whole, part, masks):
    """Return the greatest difference between what stays of `whole` and `part`, tensors by path."""
    worst = 0.0
    for path, tensor in whole.items():
        rest = kept(tensor.detach(), masks.coordinates.get(path, {}))
        assert rest.shape == part[path].shape
        worst = max(worst, float((rest - part[path].detach()).abs().max()))
    return worst


def states(model, optimizer):
    """Return each entry of the optimizer's state, tensors by path."""
    entries = {key for state in optimizer.state.values() for key in state if key != "step"}
    return {key: {path: optimizer.state[one][key] for path, one in model.named_parameters()} for key in entries}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compacted_model_trains_as_the_masked_one(name, seed):
    """Twenty steps of both, in float64: weights, moments and gradient norms agree to 1e-12."""
    model, groups, optimizer, average, held = masked(seed, OPTIMIZERS[name])
    masks = held.masks
    twin = copy.deepcopy({"model": model, "optimizer": optimizer, "average": average})
    whole, other = twin["model"], twin["optimizer"]
    still = apply_masks(whole, masks, owned(other), twin["average"])
    rates = controlled(optimizer)

    before = sizes(model, owned(optimizer))
    removed_as_planned(model, groups, masks, optimizer, rates, (example(IMAGES).double(),), average)
    after = sizes(model, owned(optimizer))
    assert after[0] == sum(one.numel() for one in model.parameters()) < before[0]
    assert after[1] < before[1]
    assert difference(twin["average"].tensors, average.tensors, masks) == 0.0
    for number in range(10, 30):
        assert rates.verify(strict=True)
        norms = step(whole, other, number, still), step(model, optimizer, number)
        assert norms[0] == pytest.approx(norms[1], rel=1e-10)
        twin["average"].update()
        average.update()

    assert difference(dict(whole.named_parameters()), dict(model.named_parameters()), masks) <= 1e-12
    assert difference(twin["average"].tensors, average.tensors, masks) <= 1e-12
    for key, tensors in states(whole, other).items():
        assert difference(tensors, states(model, optimizer)[key], masks) <= 1e-12, key
    assert all(optimizer.state[one].keys() == other.state[two].keys() for one, two in both(model, whole))


def both(model, whole):
    return zip(model.parameters(), whole.parameters(), strict=True)


def test_without_the_live_mean_a_masked_tensor_trains_differently(seed):
    """So the comparison can fail, and so masks refuse cautious AdamW without `live_mean`."""
    model, groups, optimizer, _, held = masked(seed, OPTIMIZERS["cautious"])
    twin = copy.deepcopy({"model": model, "optimizer": optimizer})
    whole, other = twin["model"], twin["optimizer"]
    still = apply_masks(whole, held.masks, owned(other))
    removed_as_planned(model, groups, held.masks, optimizer, controlled(optimizer), (example(IMAGES).double(),))
    for one in (optimizer, other):
        assert isinstance(one, CautiousAdamW)
        one.param_groups[0]["live_mean"] = False
    for number in range(10, 30):
        step(whole, other, number, still)
        step(model, optimizer, number)

    assert difference(dict(whole.named_parameters()), dict(model.named_parameters()), held.masks) > 1e-4


@pytest.mark.parametrize("kind", [models.Attention, models.SplitAttention])
def test_heads_are_removed_with_their_rows_and_columns(kind, seed):
    """The smaller layer gives the masked one's outputs, and its own count of heads is lower."""
    torch.manual_seed(seed)
    model, inputs = kind(), (example(ROWS),)
    (group,) = find_groups(model, inputs).groups
    optimizer = torch.optim.AdamW(model.parameters())
    masks = masks_of(model, [group], {group.name: (1,)})
    apply_masks(model, masks, owned(optimizer))
    expected = model(*inputs)
    heads = model.num_heads

    removed_as_planned(model, [group], masks, optimizer, controlled(optimizer), inputs)
    assert model.num_heads == heads - 1
    assert torch.allclose(model(*inputs), expected, rtol=0, atol=1e-5)


def test_a_tied_weight_stays_tied(seed):
    """The embedding and the output layer have one smaller weight."""
    torch.manual_seed(seed)
    model, inputs = models.Tied(), (example(models.WORDS),)
    groups = find_groups(model, inputs).groups
    optimizer = torch.optim.Adam(model.parameters())
    masks = masks_of(model, groups, {"g": (0, 6)})
    apply_masks(model, masks, owned(optimizer))
    expected = model(*inputs)
    removed_as_planned(model, groups, masks, optimizer, controlled(optimizer), inputs)

    assert model.h.weight is model.e.weight
    assert (model.e.embedding_dim, model.h.in_features, model.e.weight.shape) == (6, 6, (11, 6))
    assert torch.allclose(model(*inputs), expected, rtol=0, atol=1e-5)


def test_a_smaller_model_can_be_pruned_again(seed):
    """Its groups are found anew, with the widths that are left."""
    model, groups, optimizer, _, held = masked(seed, OPTIMIZERS["adamw"], torch.float32)
    rates = controlled(optimizer)
    removed_as_planned(model, groups, held.masks, optimizer, rates)
    groups = find_groups(model, INPUTS).groups
    assert {group.name: group.width for group in groups} == {"a": 5, "b": 6}

    again = masks_of(model, groups, {"a": (0,), "b": (5,)})
    apply_masks(model, again, owned(optimizer))
    removed_as_planned(model, groups, again, optimizer, rates)
    assert (model.a.out_channels, model.b.in_channels, model.b.out_channels, model.out.in_features) == (4, 4, 5, 5)


class Foreign(torch.optim.SGD):
    """An optimizer whose state nobody knows: no rebuild can follow a change of it."""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("not held", "is not 0 where it is masked: hold the masks first"),
        ("fixed", "the units of a can be masked but not removed: it is so"),
        ("unknown optimizer", "the compaction failed: .*the state of Foreign is not known"),
    ],
)
def test_what_cannot_be_removed_changes_nothing(fault, message, seed):
    """Model, modules' counts, optimizer, rates and average are the same objects with the same bits."""
    make = (lambda p: Foreign(p, lr=1e-3)) if fault == "unknown optimizer" else OPTIMIZERS["adamw"]
    model, groups = small(seed)
    optimizer, average = make(model.parameters()), Average(model, 0.9)
    step(model, optimizer, 0)
    masks = masks_of(model, groups, CHOSEN)
    apply_masks(model, masks, [] if fault == "unknown optimizer" else owned(optimizer))
    if fault == "not held":
        model.a.weight.data.add_(1.0)
    elif fault == "fixed":
        groups = [replace(group, fixed="it is so") for group in groups]
    rates = controlled(optimizer)
    objects = [*model.modules(), *model.parameters(), *optimizer.param_groups, *optimizer.state]
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict(), average.tensors, repr(model)])

    with pytest.raises(PruningRefused, match=message):
        removed_as_planned(model, groups, masks, optimizer, rates, INPUTS, average)
    after = [*model.modules(), *model.parameters(), *optimizer.param_groups, *optimizer.state]
    assert len(after) == len(objects)
    assert all(one is other for one, other in zip(objects, after, strict=True))
    assert repr(before) == repr([model.state_dict(), optimizer.state_dict(), average.tensors, repr(model)])
    assert rates.verify(strict=True)


def test_a_smaller_model_with_other_outputs_is_refused(seed):
    """The trial before the compaction compares outputs: a graph that is wrong changes nothing."""
    torch.manual_seed(seed)
    model = models.Flipped()
    groups = trace(trial_of(model, INPUTS)).groups
    optimizer = torch.optim.Adam(model.parameters())
    masks = masks_of(model, groups, {"a": (0,)})
    apply_masks(model, masks, owned(optimizer))
    before = copy.deepcopy(model.state_dict())

    with pytest.raises(PruningRefused, match="cannot be removed: masked and removed they give different outputs"):
        removed_as_planned(model, groups, masks, optimizer, controlled(optimizer))
    assert all(torch.equal(one, model.state_dict()[key]) for key, one in before.items())
