"""Rebuilds of a live optimizer: a commit leaves nothing of the old state, an abort changes nothing."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from torch import nn

from tests.trainer.optim.surgery import OPTIMIZERS, Rates, bits, net, same, train
from tolariad.core import messages as m
from tolariad.trainer.optim import OptimizerRebuildCoordinator, ParameterMapping, RebuildRefused

COMMITTED = ["OptimizerRebuildPrepared", "OptimizerRebuildCommitted"]


def names(told):
    return [type(event).__name__ for event in told]


def ready(name, seed, steps=5, **options):
    """Return a trained model, its optimizer, the owner of its rates, the reports, and the coordinator."""
    model = net(seed)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    train(model, optimizer, seed, steps)
    rates, told = Rates(optimizer), []
    return (
        model,
        optimizer,
        rates,
        told,
        OptimizerRebuildCoordinator(optimizer, model, rates, on_event=told.append, **options),
    )


def grow_first(model, by=2):
    """Give the first layer more units, and the next one inputs that are 0 at first. Parameters are replaced, not
    resized.
    """
    first, last = model.first, model.last
    with torch.no_grad():
        first.weight = nn.Parameter(torch.cat([first.weight, torch.ones(by, 3).double()]))
        first.bias = nn.Parameter(torch.cat([first.bias, torch.zeros(by).double()]))
        last.weight = nn.Parameter(torch.cat([last.weight, torch.zeros(2, by).double()], dim=1))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", list(OPTIMIZERS))
async def test_grown_parameters_take_their_places_and_train_on(name, seed):
    """One call for each parameter; then steps move old and new units, and the old objects are freed."""
    model, optimizer, rates, told, coordinator = ready(name, seed)
    gone = [weakref.ref(p) for p in (model.first.weight, model.first.bias, model.last.weight)]
    moments = {
        key: value.clone() for key, value in optimizer.state[model.first.weight].items() if torch.is_tensor(value)
    }
    grow_first(model)
    results = [
        await coordinator.handle_parameter_addition("first", (6, 3), (8, 3), "weight"),
        await coordinator.handle_parameter_addition("first", torch.Size([6]), [8], "bias"),
        coordinator.add_parameter("last", (2, 6), (2, 8), "weight"),
    ]

    assert results == [True, True, True]
    assert names(told) == COMMITTED * 3
    assert told[1].counts == m.RebuildCounts(carried=3, transformed=1)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    for key, value in moments.items():
        now = optimizer.state[model.first.weight][key]
        assert torch.equal(now[:6] if now.dim() else now, value)
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, seed, 3, start=5)
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    gc.collect()
    assert [one() for one in gone] == [None, None, None]
    assert rates.replaced == 3


@pytest.mark.parametrize("name", ["cautious", "adagrad"])
def test_a_new_layer_gets_a_group_of_its_own_and_a_gone_one_leaves(name, seed):
    """`rebuild` follows all of it at once; a layer that was taken out leaves groups and state. A bias of the old one's
    shape could be it under another name: it takes its place afresh, on request.
    """
    model, optimizer, _, told, coordinator = ready(name, seed)
    gone = [weakref.ref(p) for p in model.last.parameters()]
    model.last = nn.Sequential(nn.Linear(6, 4).double(), nn.Linear(4, 2).double())

    assert coordinator.rebuild() is False
    assert "is it last.bias renamed (identity), or new (reset)?" in told[-1].why
    assert coordinator.rebuild([ParameterMapping("last.bias", "last.1.bias", (2,), (2,), "reset")])
    assert told[-1].counts == m.RebuildCounts(carried=2, reset=1, added=3, dropped=1)
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert len(optimizer.param_groups) == 2
    assert optimizer.param_groups[1]["lr"] == 0.0
    optimizer.param_groups[1]["lr"] = 0.01
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, seed, 2, start=5)
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert set(map(id, optimizer.state)) == set(map(id, model.parameters()))


def test_a_parameter_of_an_unknown_name_is_added(seed):
    """The exact qualified name counts: `first.1` is not `first`, and only what was announced is added."""
    model, optimizer, _, told, coordinator = ready("adamw amsgrad", seed)
    model.add_module("first1", nn.Linear(6, 6).double())

    assert coordinator.add_parameter("first1", (), (6, 6), "weight")
    assert told[-1].counts == m.RebuildCounts(carried=4, added=1)
    assert [p is model.first1.weight for p in optimizer.param_groups[1]["params"]] == [True]
    assert coordinator.add_parameter("first1", (), (6,), "bias")
    assert len(optimizer.param_groups) == 3


def test_a_mapping_says_which_units_stay(seed):
    """Units pruned from the middle lose their momentum; the others keep theirs."""
    model, optimizer, _, told, coordinator = ready("sgd nesterov", seed)
    momentum = optimizer.state[model.first.bias]["momentum_buffer"].clone()
    model.first.bias = nn.Parameter(model.first.bias.detach()[[0, 2, 5]])
    mapping = ParameterMapping("first.bias", "first.bias", (6,), (3,), "contract", keep={0: [0, 2, 5]})

    assert coordinator.add_parameter("first", (6,), (3,), "bias", mapping=mapping)
    assert torch.equal(optimizer.state[model.first.bias]["momentum_buffer"], momentum[[0, 2, 5]])
    assert told[-1].counts.transformed == 1


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            ("first", (6, 3), (9, 3), "weight"),
            r"first.weight of shape \(9, 3\) was announced; in the model it has shape",
        ),
        (("nowhere", (6, 3), (8, 3), "weight"), "in the model it is not there"),
        (("first", (5, 3), (8, 3), "weight"), r"first.weight had shape \(6, 3\), not \(5, 3\)"),
        (("last", (2,), (2,), "bias"), "last.bias is the parameter that the optimizer holds already"),
    ],
)
def test_what_does_not_fit_is_aborted_with_its_reason(call, why, seed, caplog):
    """It returns False, with one event and one log line, and no bit has changed."""
    model, optimizer, rates, told, coordinator = ready("adamw amsgrad", seed)
    grow_first(model)
    before = bits(model, optimizer)

    assert coordinator.add_parameter(*call) is False
    assert names(told) == ["OptimizerRebuildAborted"]
    assert re.search(why, told[0].why)
    assert "an optimizer rebuild was aborted" in caplog.text
    assert same(before, bits(model, optimizer))
    assert rates.replaced == 0


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("stage", ["replace", "add"])
def test_an_abort_in_the_middle_leaves_every_bit(name, stage, seed):
    """The owner of the rates fails after groups and state were exchanged. All of it is undone, and training goes on as
    before.
    """
    model, optimizer, rates, told, coordinator = ready(name, seed)
    twin = net(seed)
    straight = OPTIMIZERS[name](list(twin.parameters()))
    train(twin, straight, seed, 15)
    old = {layer: dict(layer._parameters) for layer in (model.first, model.last)}
    grow_first(model)
    model.add_module("more", nn.Linear(2, 2).double())
    before = bits(model, optimizer)
    rates.fails = stage

    assert coordinator.rebuild() is False
    assert names(told) == ["OptimizerRebuildPrepared", "OptimizerRebuildAborted"]
    assert same(before, bits(model, optimizer))
    for layer, parameters in old.items():
        layer._parameters.update(parameters)
    del model.more
    train(model, optimizer, seed, 10, start=5)
    assert same([p.detach() for p in model.parameters()], [p.detach() for p in twin.parameters()])


def test_the_same_rebuild_goes_through_once_its_obstacle_is_gone(seed):
    """An abort does not change the coordinator's state."""
    model, optimizer, rates, told, coordinator = ready("cautious", seed)
    grow_first(model)
    rates.fails = "replace"

    assert [coordinator.rebuild(), coordinator.rebuild()] == [False, True]
    assert told[-1].counts == m.RebuildCounts(carried=1, transformed=3)
    train(model, optimizer, seed, 2, start=5)
    assert optimizer.state[model.first.weight]["exp_avg"].shape == (8, 3)


def test_an_overrun_is_told_and_changes_nothing(seed, caplog):
    """With a budget of 0 it is still committed, with its time in the event and a log line."""
    model, _, _, told, coordinator = ready("adam", seed, max_rebuild_time_ms=0.0)
    grow_first(model)

    assert coordinator.rebuild()
    assert told[-1].elapsed_ms > 0
    assert "its budget is 0 ms" in caplog.text


def test_an_optimizer_of_another_model_is_refused(seed):
    """Names come from the model; a parameter without one could not be followed."""
    with pytest.raises(RebuildRefused, match="not the model's"):
        OptimizerRebuildCoordinator(torch.optim.SGD(net(seed).parameters()), net(seed), None)


def test_without_a_controller_new_parameters_share_the_first_groups_options(seed):
    """For library users who set rates themselves."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.5, weight_decay=0.25)
    coordinator = OptimizerRebuildCoordinator(optimizer, model, None)
    model.add_module("more", nn.Linear(2, 2).double())

    assert coordinator.rebuild()
    assert optimizer.param_groups[1]["param_names"] == ["more.weight", "more.bias"]
    assert (optimizer.param_groups[1]["lr"], optimizer.param_groups[1]["weight_decay"]) == (0.5, 0.25)
