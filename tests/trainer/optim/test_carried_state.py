"""State carried to a new architecture: exact if possible, else by a rule, and refused if ambiguous."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.trainer.optim.surgery import (
    OPTIMIZERS,
    NotCarried,
    Rates,
    backward,
    bits,
    carried,
    net,
    same,
    split,
    train,
    widened,
)
from tolariad.core import messages as m
from tolariad.trainer.optim import AmbiguousMapping, OptimizerRebuildCoordinator, ParameterMapping, RebuildRefused

ALPHA = 0.3


def held(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def split_mappings(width, unit, alpha):
    """Net2Net's effect on gradients: those of incoming weights scale with alpha, those of outgoing ones stay."""
    source = {0: [*range(width), unit]}
    factors = {0: [alpha if i == unit else 1.0 for i in range(width)] + [1 - alpha]}
    return [
        ParameterMapping(
            "first.weight", "first.weight", (width, 3), (width + 1, 3), "expand", keep=source, scale=factors
        ),
        ParameterMapping("first.bias", "first.bias", (width,), (width + 1,), "expand", keep=source, scale=factors),
        ParameterMapping(
            "last.weight", "last.weight", (2, width), (2, width + 1), "expand", keep={1: [*range(width), unit]}
        ),
    ]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_copied_model_trains_on_bit_for_bit(name, seed):
    """The same architecture: 20 steps, a copy with a new optimizer and 20 steps equal 40 steps. Nothing is shared."""
    whole, model = net(seed), net(seed)
    straight, optimizer = OPTIMIZERS[name](whole.parameters()), OPTIMIZERS[name](model.parameters())
    train(whole, straight, seed, 40)
    train(model, optimizer, seed, 20)
    twin, told = copy.deepcopy(model), []
    before = bits(model, optimizer)
    new = carried(optimizer, twin, model, told=told)
    assert same(before, bits(model, optimizer))
    train(twin, new, seed, 20, start=20)

    assert same([p.detach() for p in twin.parameters()], [p.detach() for p in whole.parameters()])
    assert same(before, bits(model, optimizer))
    assert [type(event).__name__ for event in told] == ["OptimizerRebuildPrepared", "OptimizerRebuildCommitted"]
    assert told[1].counts == m.RebuildCounts(carried=4)


def test_every_group_and_every_option_is_kept(seed):
    """Two groups with their own options and keys; the controller adds a group for new parameters."""
    model = net(seed)
    groups = [
        {"params": [model.first.weight, model.last.weight], "weight_decay": 0.3, "group_name": "weights"},
        {"params": [model.first.bias, model.last.bias], "betas": (0.5, 0.6), "initial_lr": 7.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-5)
    train(model, optimizer, seed, 5)
    grown = copy.deepcopy(model)
    grown.add_module("more", nn.Linear(2, 2).double())
    new = carried(optimizer, grown, model, rates=Rates(optimizer, new_rate=0.125))

    def options(group):
        return {key: value for key, value in group.items() if key != "params"}

    assert [options(group) for group in new.param_groups[:2]] == [options(group) for group in optimizer.param_groups]
    names = {id(p): name for name, p in grown.named_parameters()}
    assert [[names[id(p)] for p in group["params"]] for group in new.param_groups] == [
        ["first.weight", "last.weight"],
        ["first.bias", "last.bias"],
        ["more.weight", "more.bias"],
    ]
    assert new.param_groups[2]["lr"] == 0.125
    assert all(p not in new.state for p in grown.more.parameters())


def test_an_inserted_identity_layer_at_rate_0_moves_no_old_bit_in_50_steps(seed):
    """Old parameters, the same objects under new names, train as if nothing was inserted."""
    model, twin = net(seed), net(seed)
    optimizer, straight = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, twin))
    train(model, optimizer, seed, 10)
    train(twin, straight, seed, 60)
    between = nn.Linear(6, 6).double()
    with torch.no_grad():
        between.weight.copy_(torch.eye(6))
        between.bias.zero_()
    taller = nn.Sequential(model.first, between, model.act, model.last)
    told: list = []
    new = carried(optimizer, taller, model, rates=Rates(optimizer, new_rate=0.0), told=told)
    train(taller, new, seed, 50, start=10)

    assert same([p.detach() for p in model.parameters()], [p.detach() for p in twin.parameters()])
    assert torch.equal(between.weight, torch.eye(6).double())
    assert told[-1].counts == m.RebuildCounts(carried=4, added=2)


def test_after_zero_out_widening_the_old_parameters_have_the_old_gradients(seed):
    """The first step agrees to 1e-12; the moments of old units are equal bit for bit."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, seed, 10)
    wide = widened(model, 5, seed + 1)
    new = carried(optimizer, wide, model)
    backward(model, seed, 10)
    backward(wide, seed, 10)

    for small, large in zip(model.parameters(), wide.parameters(), strict=True):
        block = tuple(slice(0, size) for size in small.shape)
        assert (large.grad[block] - small.grad).norm() <= 1e-12 * small.grad.norm()
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(new.state[large][key][block], optimizer.state[small][key])


def test_after_a_split_the_old_parameters_have_the_old_gradients(seed):
    """Incoming moments of Net2Net's halves are multiplied by alpha and 1 - alpha; outgoing ones are unchanged."""
    model = net(seed)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), seed, 10)
    wide = split(model, 2, ALPHA)
    backward(model, seed, 10)
    backward(wide, seed, 10)
    factors = torch.tensor([1.0, 1.0, ALPHA, 1.0, 1.0, 1.0, 1 - ALPHA], dtype=torch.float64)
    source = [0, 1, 2, 3, 4, 5, 2]
    expected = [
        model.first.weight.grad[source] * factors[:, None],
        model.first.bias.grad[source] * factors,
        model.last.weight.grad[:, source],
        model.last.bias.grad,
    ]

    for p, gradient in zip(wide.parameters(), expected, strict=True):
        assert (p.grad - gradient).norm() <= 1e-12 * gradient.norm()


@pytest.mark.parametrize("name", ["adam", "adamw amsgrad", "cautious", "sgd nesterov", "rmsprop", "adagrad"])
def test_transplanted_moments_are_those_the_split_model_would_have_come_to(name, seed):
    """Weights held at rate 0, 30 steps: split first or split last, moments agree to 1e-12 (alpha and its square).

    Adam's L2 decay is left out: it adds the weight, whose split is not the gradient's.
    """
    model = net(seed)
    optimizer = OPTIMIZERS[name](model.parameters())
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"], group["eps"] = 0.0, 0.0, 0.0
        group["initial_accumulator_value"] = 0.0
    if name == "adagrad":
        for state in optimizer.state.values():
            state["sum"].zero_()
    wide = split(model, 2, ALPHA)
    mappings = split_mappings(6, 2, ALPHA)
    early = carried(optimizer, wide, model, mappings)
    train(wide, early, seed, 30)
    train(model, optimizer, seed, 30)
    late = carried(optimizer, wide, model, mappings)

    for p in wide.parameters():
        assert set(early.state[p]) == set(late.state[p])
        for key, value in late.state[p].items():
            size = value.abs().max().item()
            assert size > 0
            assert (early.state[p][key] - value).abs().max().item() <= 1e-12 * size


def test_new_units_have_no_momentum_and_the_mean_of_the_old_second_moments(seed):
    """If both dimensions grow, rows get the columns' means, columns the rows', corners the mean of all."""
    model, wide = nn.Linear(3, 4).double(), nn.Linear(5, 6).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.weight.grad, model.bias.grad = torch.randn(4, 3).double(), torch.randn(4).double()
    optimizer.step()
    new = carried(optimizer, wide, model)
    m, v = new.state[wide.weight]["exp_avg"], new.state[wide.weight]["exp_avg_sq"]
    old = optimizer.state[model.weight]["exp_avg_sq"]

    assert not m[4:].any()
    assert not m[:, 3:].any()
    assert torch.equal(v[:4, :3], old)
    assert torch.allclose(v[4:, :3], old.mean(0, keepdim=True).expand(2, 3), rtol=1e-14)
    assert torch.allclose(v[:4, 3:], old.mean(1, keepdim=True).expand(4, 2), rtol=1e-14)
    assert torch.allclose(v[4:, 3:], old.mean().expand(2, 2), rtol=1e-14)
    assert new.state[wide.weight]["step"] == 1


def test_growth_said_by_indices_is_growth(seed):
    """`keep` with old units first and new ones after them gives the bits of the default expansion."""
    torch.manual_seed(seed)
    old, new = nn.ParameterList([torch.zeros(4, 3)]), nn.ParameterList([torch.zeros(6, 5)])
    optimizer = torch.optim.AdamW(old.parameters())
    old[0].grad = torch.randn(4, 3)
    optimizer.step()
    said = {0: [0, 1, 2, 3, -1, -1], 1: [0, 1, 2, -1, -1]}
    ends = [
        carried(optimizer, new, old, [ParameterMapping("0", "0", (4, 3), (6, 5), "expand", keep=keep)])
        for keep in (None, said)
    ]

    assert same(ends[0].state_dict(), ends[1].state_dict())


@pytest.mark.parametrize(
    ("mapping", "shape", "expected"),
    [
        (("contract", {"keep": {0: [2, 0]}}), (2, 3), [[6, 7, 8], [0, 1, 2]]),
        (("contract", {"keep": {0: [1], 1: [0, 2]}}), (1, 2), [[3, 5]]),
        (("permute", {"order": (1, 0)}), (3, 3), [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
        (("permute", {"order": {1: [2, 0, 1]}}), (3, 3), [[2, 0, 1], [5, 3, 4], [8, 6, 7]]),
        (("reshape", {}), (9,), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (("expand", {"keep": {0: [1, -1, 1, 0]}}), (4, 3), [[3, 4, 5], [0, 0, 0], [3, 4, 5], [0, 1, 2]]),
        (("expand", {"scale": 0.5}), (3, 4), [[0, 0.5, 1, 0], [1.5, 2, 2.5, 0], [3, 3.5, 4, 0]]),
    ],
)
def test_each_mapping_moves_momentum_where_it_says(mapping, shape, expected):
    """One entry of a first moment, computed by hand."""
    old, new = nn.ParameterList([torch.zeros(3, 3)]), nn.ParameterList([torch.zeros(shape)])
    optimizer = torch.optim.SGD(old.parameters(), lr=0.0, momentum=0.9)
    old[0].grad = torch.arange(9.0).reshape(3, 3)
    optimizer.step()
    kind, options = mapping
    moved = carried(optimizer, new, old, [ParameterMapping("0", "0", (3, 3), shape, kind, **options)])

    assert moved.state[new[0]]["momentum_buffer"].tolist() == expected


@pytest.mark.parametrize(("kind", "shape"), [("reset", (3, 3)), ("reshape", (2, 4))])
def test_what_has_no_meaning_is_begun_afresh_in_the_same_group(kind, shape):
    """Reset, and reshape to another number of elements: no state, but the group's options and the same place."""
    old, new = nn.ParameterList([torch.zeros(3, 3)]), nn.ParameterList([torch.zeros(shape)])
    for make in (OPTIMIZERS["adam"], OPTIMIZERS["adagrad"]):
        optimizer = make(list(old.parameters()))
        old[0].grad = torch.ones(3, 3)
        optimizer.step()
        told: list = []
        moved = carried(optimizer, new, old, [ParameterMapping("0", "0", (3, 3), shape, kind)], told=told)
        fresh = make(list(new.parameters()))
        assert same(moved.state_dict(), fresh.state_dict())
        assert told[-1].counts == m.RebuildCounts(reset=1)


def test_what_cannot_be_told_is_refused_by_name_all_at_once(seed):
    """A smaller shape and a possible renaming: the error names both, with what to pass; nothing has changed."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, seed, 3)
    other = nn.Sequential()
    other.add_module("first", nn.Linear(3, 4).double())
    other.add_module("out", nn.Linear(6, 2).double())
    before, told, rates = bits(model, optimizer), [], Rates(optimizer)

    with pytest.raises(NotCarried) as refused:
        carried(optimizer, other, model, rates=rates, told=told)

    for words in (
        "AmbiguousMapping: ",
        r"first.weight (6, 3) -> (4, 3): contract (which units stay?)",
        r"first.bias (6,) -> (4,): contract",
        r"out.weight (2, 6): is it last.weight renamed (identity), or new (reset)?",
        r"out.bias (2,): is it last.bias renamed",
    ):
        assert words in str(refused.value)
    assert same(before, bits(model, optimizer))
    assert rates.replaced == 0
    assert [type(event).__name__ for event in told] == ["OptimizerRebuildAborted"]
    assert "first.weight" in told[0].why


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (((4, 3), (4, 3), "shrink"), {}, ValueError, "none of identity, expand"),
        (((4, 3), (5, 3), "identity"), {}, ValueError, "an identity has one shape"),
        (((4, 3), (3, 3), "expand"), {}, ValueError, "a dimension shrinks"),
        (((4, 3), (3, 3), "contract"), {}, AmbiguousMapping, "which units stay"),
        (((4, 3), (3, 2), "contract"), {"keep": {0: [0, 1, 2]}}, AmbiguousMapping, "dimension 1 changes"),
        (((4, 3), (2, 3), "contract"), {"keep": {0: [1, 1]}}, ValueError, "names a unit twice"),
        (((4, 3), (2, 3), "contract"), {"keep": {0: [1, 4]}}, ValueError, "2 indices of 0 to 3"),
        (((4, 3), (3, 4), "permute"), {}, AmbiguousMapping, "in which order"),
        (((4, 3), (3, 4), "permute"), {"order": (0, 1)}, ValueError, "no permutation that gives this shape"),
        (((4,), (5,), "expand"), {"scale": {0: [1.0] * 4}}, ValueError, "one finite number for each index"),
        (((4,), (5,), "expand"), {"order": (0,)}, ValueError, "order belongs to permute"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_when_it_is_made(arguments, options, error, words):
    """The error has the parameter's name and what is missing."""
    with pytest.raises(error, match=words) as refused:
        ParameterMapping("layer.weight", "layer.weight", *arguments, **options)
    assert "layer.weight" in str(refused.value)


def test_mappings_that_do_not_fit_the_models_are_refused(seed):
    """Refused: unknown names, other shapes, one target twice, an optimizer of another model or unknown class."""
    model, twin = net(seed), net(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    same_shape = ((2,), (2,), "identity")
    for mappings, words in (
        ([ParameterMapping("nobody", "last.bias", *same_shape)], "the old model has no trained parameter 'nobody'"),
        ([ParameterMapping("last.bias", "nobody", *same_shape)], "the new model has no trained parameter"),
        ([ParameterMapping("first.bias", "last.bias", *same_shape)], r"in the old model 'first.bias' has shape \(6,\)"),
        ([ParameterMapping("last.bias", "last.bias", *same_shape)] * 2, "given twice"),
    ):
        with pytest.raises(NotCarried, match=words):
            carried(optimizer, twin, model, mappings)
    with pytest.raises(RebuildRefused, match="holds parameters that are not the model's"):
        OptimizerRebuildCoordinator(optimizer, twin, None)
    with pytest.raises(
        NotCarried, match="the state of RAdam is not known; the known optimizers are Adagrad, Adam, AdamW, Cau"
    ):
        carried(torch.optim.RAdam(model.parameters()), twin, model)


def test_named_parameters_stay_named(seed):
    """An optimizer that was built from names has the new ones, and its state_dict loads by them."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    train(model, optimizer, seed, 3)
    grown = widened(model, 2, seed)
    grown.add_module("more", nn.Linear(2, 2).double())
    new = carried(optimizer, grown, model)

    assert new.param_groups[0]["param_names"] == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert new.param_groups[1]["param_names"] == ["more.weight", "more.bias"]


def test_a_failing_owner_of_the_rates_leaves_the_old_optimizer_in_charge(seed):
    """Nothing changes, whether the exchange or the new group is refused."""
    for stage in ("replace", "add"):
        model = net(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, seed, 3)
        grown = copy.deepcopy(model)
        grown.add_module("more", nn.Linear(2, 2).double())
        rates, before, told = Rates(optimizer), bits(model, optimizer), []
        rates.fails = stage
        with pytest.raises(NotCarried, match="RuntimeError"):
            carried(optimizer, grown, model, rates=rates, told=told)

        assert same(before, bits(model, optimizer))
        assert [type(event).__name__ for event in told] == ["OptimizerRebuildPrepared", "OptimizerRebuildAborted"]


def test_state_that_is_not_finite_is_not_spread(seed):
    """An infinite second moment would spread to every new unit: refused with parameter and entry."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, seed, 3)
    optimizer.state[model.first.weight]["exp_avg_sq"][0, 0] = float("inf")
    with pytest.raises(NotCarried, match=r"first\.weight.*exp_avg_sq holds numbers that are not finite"):
        carried(optimizer, widened(model, 2, seed), model)


def test_a_growing_tensor_takes_a_bounded_first_step(seed):
    """After 1 000 steps new units move a few rates at most; with second moments of 0 they would overshoot six times."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    train(model, optimizer, seed, 1000)
    wide = widened(model, 4, seed)
    before = [p.detach().clone() for p in wide.parameters()]
    new = carried(optimizer, wide, model)
    train(wide, new, seed, 1, start=1000)

    moved = max((p.detach() - old).abs().max().item() for p, old in zip(wide.parameters(), before, strict=True))
    assert moved < 2e-3
    assert held(new)[0] is wide.first.weight
