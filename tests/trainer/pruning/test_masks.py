"""Masks: whole or not at all, exactly 0 under every optimizer, and beside the model."""

from __future__ import annotations

import copy

import msgspec
import pytest
import torch
from torch import nn

from tests.trainer.pruning import models
from tests.trainer.pruning.models import ROWS, WORDS, Rows, Small, example
from tests.trainer.pruning.training import CHOSEN, OPTIMIZERS, masked_values, owned, small, step
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.average import Average
from tolariad.trainer.optim.configured import CLASSES
from tolariad.trainer.optim.transform import KINDS
from tolariad.trainer.pruning.masks import HeldMasks, MaskSet, ParameterMask, apply_masks, masks_of, release_masks
from tolariad.trainer.pruning.units import PruningRefused
from tolariad.trainer.pruning.verify import find_groups

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


def test_the_optimizers_of_these_tests_are_all_that_a_run_may_have():
    """Those that a configuration names, and those whose state is known."""
    weight = torch.nn.Parameter(torch.zeros(2))
    tested = {type(make([weight])) for make in OPTIMIZERS.values()}

    assert tested == set(CLASSES.values()) == KINDS.keys()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "steps"),
    [(name, 100) for name in OPTIMIZERS] + [pytest.param(name, 1000, marks=pytest.mark.torture) for name in OPTIMIZERS],
)
def test_masked_coordinates_stay_exactly_zero_while_the_model_learns(name, steps, seed):
    """Weights, gradients, every entry of the optimizer's state and the average, in every look at them."""
    model, groups = small(seed, kind=Rows)
    optimizer, average = OPTIMIZERS[name](model.parameters()), Average(model, 0.9)
    for number in range(5):
        step(model, optimizer, number)
        average.update()
    masks = masks_of(model, groups, CHOSEN)
    parameters = dict(model.named_parameters())
    assert all(values.count_nonzero() for values in masked_values(parameters, masks)), "there is something to mask"
    held = apply_masks(model, masks, owned(optimizer), average)
    before = copy.deepcopy(model.state_dict())

    looked = 0
    for number in range(steps):
        step(model, optimizer, number % 50, held)
        average.update()
        if number % 100 in {0, 99}:
            looked += 1
            gradients = {path: one.grad for path, one in parameters.items()}
            entries = {key for state in optimizer.state.values() for key in state if key != "step"}
            states = [{path: optimizer.state[one][key] for path, one in parameters.items()} for key in entries]
            for tensors in (parameters, gradients, average.tensors, *states):
                found = masked_values(tensors, masks)
                assert len(found) == 8
                assert not any(values.count_nonzero() for values in found)
    assert all(bool(one.isfinite().all()) for one in model.parameters())
    assert looked == steps // 50
    assert not torch.equal(before["a.weight"], model.a.weight)


@pytest.mark.parametrize("left_out", ["moments", "gradients", "hold", "nothing"])
def test_each_part_of_a_mask_is_needed(left_out, seed):
    """Without one of them masked coordinates come back: from momentum, from a gradient, or by the optimizer's doing."""
    torch.manual_seed(seed)
    # A masked unit's output is sigmoid(0): the columns that read it have a gradient.
    model = models.Saturating()
    groups = find_groups(model, (example(ROWS),)).groups
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def backward():
        optimizer.zero_grad()
        model(example(ROWS)).square().mean().backward()

    for _ in range(3):
        backward()
        optimizer.step()
    masks = masks_of(model, groups, {"a": (1, 3)})
    held = apply_masks(model, masks, [] if left_out == "moments" else owned(optimizer))
    backward()
    if left_out != "gradients":
        held.zero_gradients()
    optimizer.step()
    if left_out == "hold":
        with torch.no_grad():
            model.a.weight.add_(1.0)

    is_back = any(values.count_nonzero() for values in masked_values(dict(model.named_parameters()), masks))
    assert is_back is (left_out != "nothing")
    held.hold()
    assert not any(values.count_nonzero() for values in masked_values(dict(model.named_parameters()), masks))


@pytest.mark.parametrize("name", ["momentum", "amsgrad"])
def test_released_masks_give_back_what_they_displaced(name, seed):
    """Weights, moments and averages of the units, bit for bit; what was learnt meanwhile by the others stays."""
    model, groups = small(seed)
    optimizer, average = OPTIMIZERS[name](model.parameters()), Average(model, 0.9)
    for number in range(5):
        step(model, optimizer, number)
        average.update()
    parameters = dict(model.named_parameters())
    masks = masks_of(model, groups, CHOSEN)

    def everything():
        entries = {key for state in optimizer.state.values() for key in state if key != "step"}
        states = [{path: optimizer.state[one][key] for path, one in parameters.items()} for key in sorted(entries)]
        return [parameters, average.tensors, *states]

    before = [masked_values(tensors, masks) for tensors in everything()]
    held = apply_masks(model, masks, owned(optimizer), average)
    for number in range(5):
        step(model, optimizer, number, held)
        average.update()
    learnt = model.out.bias.detach().clone()
    release_masks(model, held, owned(optimizer), average)

    after = [masked_values(tensors, masks) for tensors in everything()]
    assert all(values.count_nonzero() for found in before for values in found)
    assert all(
        torch.equal(a, b) for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert torch.equal(model.out.bias, learnt)
    step(model, optimizer, 9)
    assert model.a.weight.grad[list(CHOSEN["a"])].count_nonzero(), "they learn again"


def test_a_masked_coordinate_that_is_no_number_becomes_zero(seed):
    """An optimizer without eps divides 0 by 0 there. The others are as without masks at these places."""
    model, groups = small(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.0)
    held = apply_masks(model, masks_of(model, groups, CHOSEN), owned(optimizer))
    step(model, optimizer, 0, held)

    assert not any(one.isnan().any() for one in model.parameters())


def test_the_gradient_norm_counts_live_coordinates_only(seed):
    """Masked gradients are 0 before it is taken; the norm is that of the live ones."""
    model, groups = small(seed)
    masks = masks_of(model, groups, CHOSEN)
    held = HeldMasks(model, masks)
    images, labels = example(models.IMAGES, 1), torch.tensor([0, 1])
    nn.functional.cross_entropy(model(images), labels).backward()
    whole = torch.nn.utils.get_total_norm(one.grad for one in model.parameters())
    expected = copy.deepcopy({path: one.grad for path, one in model.named_parameters()})
    for mask in masks.masks:
        for dim, indices in mask.dims.items():
            expected[mask.path].index_fill_(dim, torch.tensor(indices), 0.0)
    held.zero_gradients()

    norm = torch.nn.utils.get_total_norm(one.grad for one in model.parameters())
    assert norm == torch.nn.utils.get_total_norm(expected.values())
    assert norm < whole


def test_masks_are_not_in_the_state_dict(seed):
    """A fresh model loads it strictly, and modules, hooks and parameters are the same objects."""
    model, groups = small(seed)
    objects = [*model.modules(), *model.parameters()]
    keys = list(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters())
    apply_masks(model, masks_of(model, groups, CHOSEN), owned(optimizer))

    assert list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(objects, [*model.modules(), *model.parameters()], strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    Small().load_state_dict(model.state_dict(), strict=True)


def test_a_channel_goes_with_its_norm_and_its_readers(seed):
    """Rows, BatchNorm's scale and shift, and the columns that read them: a dead channel emits nothing."""
    model, groups = small(seed)
    masks = masks_of(model, groups, {"a": (2,)})

    assert {mask.path: mask.dims for mask in masks.masks} == {
        "a.weight": {0: (2,)},
        "b.weight": {1: (2,)},
        "norm.bias": {0: (2,)},
        "norm.weight": {0: (2,)},
    }


def test_a_tied_weight_is_masked_once():
    """Under its first name, in both of its roles."""
    model = models.Tied()
    (group,) = (one for one in find_groups(model, (example(WORDS),)).groups if one.name == "g")
    masks = masks_of(model, [group], {"g": (3,)})

    assert [mask.path for mask in masks.masks] == ["e.weight", "f.weight", "g.bias", "g.weight"]
    apply_masks(model, masks, owned(torch.optim.SGD(model.parameters(), lr=0.1)))
    assert model.h.weight is model.e.weight
    assert not model.h.weight[:, 3].count_nonzero()


GOOD = ParameterMask("b.weight", (8, 8, 3, 3), {1: (2,)})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (ParameterMask("x.weight", (8,), {0: (1,)}), "the model has no parameter 'x.weight' to mask"),
        (ParameterMask("out.weight", (5, 9), {0: (1,)}), r"out.weight has shape \(5, 8\), its mask is for \(5, 9\)"),
        (ParameterMask("out.weight", (5, 8), {2: (1,)}), "out.weight has 2 dimensions, its mask names number 2"),
        (ParameterMask("out.weight", (5, 8), {1: (8,)}), "ascend from 0 to 7 in dimension 1"),
        (ParameterMask("out.weight", (5, 8), {1: (-1,)}), "ascend from 0 to 7 in dimension 1"),
        (ParameterMask("out.weight", (5, 8), {1: (3, 3)}), "ascend from 0 to 7 in dimension 1"),
        (ParameterMask("out.weight", (5, 8), {1: tuple(range(8))}), "its mask covers all of dimension 1"),
    ],
)
def test_a_set_with_one_mask_that_does_not_fit_changes_nothing(mask, message, seed):
    """The other mask of the set is not applied either, to weights or moments."""
    model, _ = small(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, 0)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])

    with pytest.raises(PruningRefused, match=message):
        apply_masks(model, MaskSet((GOOD, mask)), owned(optimizer))
    assert repr(before) == repr([model.state_dict(), optimizer.state_dict()["state"]])


class Foreign(torch.optim.SGD):
    """An optimizer whose state nobody knows."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (CautiousAdamW, "cautious_adamw's steps; set optimizer.live_mean: true"),
        (lambda p: Foreign(p, lr=0.1), "cannot be masked: the state of Foreign is not known"),
    ],
)
def test_an_optimizer_that_would_train_differently_is_refused(make, message, seed):
    """Before anything changes."""
    model, groups = small(seed)
    before = copy.deepcopy(model.state_dict())

    with pytest.raises(PruningRefused, match=message):
        apply_masks(model, masks_of(model, groups, CHOSEN), owned(make(model.parameters())))
    assert all(torch.equal(one, model.state_dict()[key]) for key, one in before.items())


def test_the_hash_of_a_set_says_what_it_masks(seed):
    """It survives the way to disk and back, and differs for another path, shape, dimension or index."""
    model, groups = small(seed)
    masks = masks_of(model, groups, {"b": (5, 0), "a": (7, 1, 4)})
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(masks), type=MaskSet)

    assert again == masks
    assert again.sha256 == masks.sha256 == masks_of(model, groups, CHOSEN).sha256
    others = [
        ParameterMask("c.weight", GOOD.shape, GOOD.dims),
        ParameterMask(GOOD.path, (8, 8, 9), GOOD.dims),
        ParameterMask(GOOD.path, GOOD.shape, {0: (2,)}),
        ParameterMask(GOOD.path, GOOD.shape, {1: (3,)}),
        ParameterMask(GOOD.path, GOOD.shape, {1: (2, 3)}),
        GOOD,
    ]
    assert len({MaskSet((one,)).sha256 for one in others}) == len(others)
