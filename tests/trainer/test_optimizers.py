"""Any optimizer of the configuration, with its own arguments and groups."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
import torch
from torch import nn

from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.optimization import LearningRate, Optimizer, OptimizerGroup, OptimizerName
from tolariad.trainer.lr.configured import Horizon, controller_for
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.configured import CLASSES, Groups, build_optimizer

ARGUMENTS = {
    "adamw": {"weight_decay": 0.02, "betas": (0.8, 0.9)},
    "adam": {"eps": 1e-6, "amsgrad": True},
    "cautious_adamw": {"mask_eps": 0.01, "max_scale": 4.0, "live_mean": True, "cautious_weight_decay": True},
    "sgd": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"alpha": 0.9, "centered": True, "momentum": 0.5},
    "adagrad": {"initial_accumulator_value": 0.1},
}


def test_every_name_of_the_configuration_has_its_class():
    """The table has exactly the configuration's names."""
    assert set(CLASSES) == set(get_args(OptimizerName)) == set(ARGUMENTS)
    assert CLASSES["cautious_adamw"] is CautiousAdamW


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_each_is_built_with_its_arguments_and_steps(name):
    """The arguments reach the groups, a pattern's group has its own, and a step moves every parameter."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    options = Optimizer(name=name, groups=(OptimizerGroup(match="*.bias", weight_decay=0.5),), **ARGUMENTS[name])
    groups = build_optimizer(object(), model, Settings(optimizer=options))
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(5, 4)).square().sum().backward()
    groups.optimizer.step()

    assert type(groups.optimizer) is CLASSES[name]
    rest = groups.optimizer.param_groups[1]
    assert {key: rest[key] for key in ARGUMENTS[name]} == ARGUMENTS[name]
    assert groups.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert [origin and msgspec.structs.asdict(origin)["match"] for origin in groups.origins] == ["*.bias", None]


@pytest.mark.parametrize("rates", [(0.003,), (0.003, 0.03)], ids=["one", "two"])
def test_a_rate_that_is_not_used_is_said(rates, caplog):
    """The task's optimizer has a rate, the configuration has another one: the sentence has both, and what to set."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    made = Groups(torch.optim.SGD(groups), (None,) * len(groups))
    settings = Settings(learning_rate=LearningRate(base_lr=0.0001))
    controller_for({"host": made}, settings, Horizon(5, 10))

    (said,) = [one.getMessage() for one in caplog.records]
    assert "the learning rate 0.003, but learning_rate.base_lr is 0.0001 and is used" in said
    assert "set base_lr to 0.003" in said
    assert ("keep their ratio" in said) == (len(rates) > 1)


def test_the_rate_of_the_configuration_is_not_mentioned(caplog):
    """The same rate, or an optimizer of the configuration with groups of its own."""
    same = Groups(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.003), (None,))
    controller_for({"host": same}, Settings(learning_rate=LearningRate(base_lr=0.003)), Horizon(5, 10))
    options = Optimizer(groups=(OptimizerGroup(match="bias", base_lr=0.5),))
    settings = Settings(optimizer=options)
    controller_for({"host": build_optimizer(object(), nn.Linear(2, 2), settings)}, settings, Horizon(5, 10))
    assert caplog.records == []
