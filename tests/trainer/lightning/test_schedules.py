"""The forms of `configure_optimizers`, and schedulers as tables: the rates are those of torch, to the bit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from tests.trainer.lightning.stub import Line, Rows
from tests.trainer.lightning.test_modules import having, task_of
from tolariad.core.calc.learning_rate.group import rate_of
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lightning.optimizers import Configured, Lengths, Stepped, momentum_of, read, tabulate
from tolariad.trainer.tasks.task import FoundTask

STEPS = 40


def optimizer(kind=torch.optim.SGD, **options):
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    return kind([{"params": weights[:1], "lr": 0.3}, {"params": weights[1:]}], lr=0.07, **options)


def adam():
    return optimizer(torch.optim.AdamW)


MAKERS = {
    "constant": (optimizer, lambda _: ()),
    "lambda": (optimizer, lambda one: [LambdaLR(one, lambda step: 1.0 / (1 + step))]),
    "onecycle": (adam, lambda one: [OneCycleLR(one, [0.3, 0.1], total_steps=STEPS)]),
    "cyclic": (lambda: optimizer(momentum=0.5), lambda one: [CyclicLR(one, 0.01, 0.1, step_size_up=7)]),
    "sequential": (
        optimizer,
        lambda one: [SequentialLR(one, [LinearLR(one, total_iters=5), CosineAnnealingWarmRestarts(one, 9)], [5])],
    ),
    "chained": (optimizer, lambda one: [ChainedScheduler([LinearLR(one), ExponentialLR(one, 0.9)], one)]),
    "two": (optimizer, lambda one: [StepLR(one, 6, 0.5), ExponentialLR(one, 0.99)]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_table_has_the_rates_and_momenta_that_torch_sets(name):
    """Bit for bit, for each group, and the optimizer is as it was."""
    make, schedulers = MAKERS[name]
    mine, theirs = make(), make()
    steppeds = [Stepped(one, "step") for one in schedulers(mine)]
    before = [dict(group) for group in mine.param_groups]
    tables = tabulate(Configured(mine, tuple(steppeds)), Lengths(STEPS, 10, 10, 1))
    assert [dict(group) for group in mine.param_groups] == before
    assert "step" not in vars(mine)
    steppers = schedulers(theirs)
    for step in range(STEPS):
        groups = theirs.param_groups
        assert [rates[step] for rates in tables.rates] == [group["lr"] for group in groups]
        for momenta, group in zip(tables.momenta, groups, strict=True):
            assert momenta is None or momenta[step] == momentum_of(group)
        theirs.step()
        for one in steppers if step < STEPS - 1 else ():
            one.step()
    assert (tables.momenta[0] is not None) == (name in {"onecycle", "cyclic"})


@pytest.mark.parametrize(
    ("interval", "frequency", "accumulate", "falls_after"),
    [
        ("epoch", 1, 1, [4, 8]),
        ("epoch", 2, 1, [8]),
        ("step", 3, 1, [3, 7, 11]),
        ("step", 3, 3, [1, 3, 5]),
        ("step", 4, 3, [2, 4, 6]),
    ],
)
def test_interval_and_frequency_count_batches_as_lightning_does(interval, frequency, accumulate, falls_after):
    """By the batches of an epoch of four, not by the updates of the run; of a last group all batches count."""
    mine = optimizer()
    stepped = Stepped(ExponentialLR(mine, 0.5), interval, frequency)
    per_epoch = -(-4 // accumulate)
    rates = tabulate(Configured(mine, (stepped,)), Lengths(3 * per_epoch, per_epoch, 4, accumulate)).rates[0]
    assert [step for step, (one, two) in enumerate(pairwise(rates), 1) if two < one] == [
        step for step in falls_after if step < len(rates)
    ]


def test_the_forms_of_configure_optimizers_are_all_read():
    """One optimizer, a list, two lists, a dict, a list of one dict."""
    one = optimizer()
    falling = StepLR(one, 1)
    keys = {"scheduler": falling, "interval": "step", "frequency": 2, "name": "rate", "strict": True}
    for form, schedulers in (
        (one, ()),
        ([one], ()),
        (([one], [falling]), (Stepped(falling),)),
        (([one], falling), (Stepped(falling),)),
        ([[one], [keys]], (Stepped(falling, "step", 2),)),
        ({"optimizer": one}, ()),
        ({"optimizer": one, "lr_scheduler": keys}, (Stepped(falling, "step", 2),)),
        ({"optimizer": one, "lr_scheduler": falling, "monitor": "val_loss"}, (Stepped(falling, monitor="val_loss"),)),
        ([{"optimizer": one, "lr_scheduler": falling}], (Stepped(falling),)),
    ):
        assert read(form) == Configured(one, schedulers)


class Timms:
    """A scheduler that is none of torch's."""


def forms():
    one, two = optimizer(), optimizer()
    with_keys = {"optimizer": one}
    return {
        "nothing": (None, "it returns None: no parameter would change"),
        "text": ("adam", "it returns a str"),
        "two optimizers": ([one, two], "returns 2 optimizers; with automatic optimization there is one"),
        "two dicts": ([{"optimizer": one}, {"optimizer": two}], "returns 2 optimizers"),
        "no optimizer": ({"lr_scheduler": StepLR(one, 1)}, "it returns a NoneType"),
        "key": ({**with_keys, "scheduler": StepLR(one, 1)}, "returns the key 'scheduler', which means nothing"),
        "inner key": ({**with_keys, "lr_scheduler": {"scheduler": StepLR(one, 1), "intervall": "step"}}, "'intervall'"),
        "other": ({**with_keys, "lr_scheduler": StepLR(two, 1)}, "StepLR belongs to another optimizer"),
        "foreign": ({**with_keys, "lr_scheduler": Timms()}, "a Timms is not supported"),
        "interval": ({**with_keys, "lr_scheduler": {"scheduler": StepLR(one, 1), "interval": "batch"}}, "'batch'"),
        "frequency": ({**with_keys, "lr_scheduler": {"scheduler": StepLR(one, 1), "frequency": 0}}, "frequency is 0"),
        "plateau": (
            {**with_keys, "lr_scheduler": {"scheduler": StepLR(one, 1), "reduce_on_plateau": True}},
            "is for ReduceLROnPlateau, not for StepLR",
        ),
    }


@pytest.mark.parametrize("name", forms())
def test_a_form_that_cannot_be_honoured_is_refused(name):
    """By the key or the class that is wrong."""
    found, why = forms()[name]
    with pytest.raises(SetupRefused, match=why):
        read(found)


def test_a_scheduler_that_ends_before_the_run_is_refused_with_its_step():
    """Lightning's trainer would fail at that step."""
    mine = optimizer(momentum=0.9)
    stepped = Stepped(OneCycleLR(mine, 0.1, total_steps=5), "step")
    with pytest.raises(SetupRefused, match=r"OneCycleLR.step\(\) raises ValueError after step 6 of 9: Tried to step 6"):
        tabulate(Configured(mine, (stepped,)), Lengths(9, 9, 9, 1))


class Decaying(LambdaLR):
    """Changes the weight decay too."""

    def step(self):
        super().step()
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 0.5


@pytest.mark.parametrize(
    ("scheduler", "lengths", "why"),
    [
        (lambda one: Decaying(one, lambda _: 1.0), Lengths(6, 3, 3, 1), "Decaying changes 'weight_decay'"),
        (lambda one: LambdaLR(one, lambda _: -1.0), Lengths(3, 3, 3, 1), "LambdaLR: at step 1 it gives -0.3"),
        (lambda one: StepLR(one, 1), Lengths(3, 3, 0, 1), "interval `epoch` needs to know how many batches"),
        (lambda one: StepLR(one, 1), Lengths(1 << 21, 3, 3, 1), "at most 1048576 steps, and the run has 2097152"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused(scheduler, lengths, why):
    """With the scheduler's class and what is wrong."""
    mine = optimizer(weight_decay=0.1)
    with pytest.raises(SetupRefused, match=why):
        tabulate(Configured(mine, (Stepped(scheduler(mine)),)), lengths)


def built(configured, configure, **members):
    module = type("Mine", (Line,), {"configure_optimizers": configure, **members})
    task = task_of(module, Rows=Rows)
    configuration = configured("lightning:mine.py:Mine", epochs=3, task_options={"datamodule": "Rows"})
    return build(configuration, given=FoundTask(task, "", task.schedules))


def test_the_controller_holds_the_rates_of_the_module(configured):
    """Of a module without a scheduler its own rate, else the table; the recorder computes the same floats."""
    (group,) = built(configured, Line.configure_optimizers).rates.groups
    assert (group.policy, rate_of(group, 5)) == (LRPolicy.CONSTANT, 0.001)

    def falling(self):
        one = torch.optim.SGD(self.parameters(), lr=0.1)
        return [one], [{"scheduler": ExponentialLR(one, 0.7), "interval": "step"}]

    setup = built(configured, falling)
    (group,) = setup.rates.groups
    theirs = falling(Line())
    wanted = []
    for _ in range(6):
        wanted.append(theirs[0][0].param_groups[0]["lr"])
        theirs[0][0].step()
        theirs[1][0]["scheduler"].step()
    assert [rate_of(group, step) for step in range(1, 7)] == wanted
    assert (group.policy_name, group.schedule.base_lr, setup.rates.row) == ("ExponentialLR", 0.1, (0.1,))


def plateau(monitor="val_loss", **options):
    def configure(self):
        one = torch.optim.SGD(self.parameters(), lr=0.1)
        found = {"scheduler": ReduceLROnPlateau(one, **options), "monitor": monitor}
        return {"optimizer": one, "lr_scheduler": found}

    return configure


def test_a_plateau_of_the_loss_is_tolariads_own_policy(configured):
    """Its parameters are those of the scheduler."""
    setup = built(
        configured,
        plateau(factor=0.5, patience=2, threshold=0.01, cooldown=1, min_lr=0.001),
        validation_step=lambda self, batch: None,
    )
    (group,) = setup.rates.groups
    rule = group.schedule.plateau
    assert (rule.factor, rule.patience, rule.threshold, rule.cooldown) == (0.5, 2, 0.01, 1)
    assert (group.policy, group.schedule.base_lr, group.schedule.min_lr) == (LRPolicy.MORPHO_ADAPTIVE, 0.1, 0.001)


@pytest.mark.parametrize(
    ("configure", "why"),
    [
        (plateau(mode="max"), "mode='max' is not supported, only with 'min'"),
        (plateau(threshold_mode="abs"), "threshold_mode='abs'"),
        (plateau("val_f1"), "monitors 'val_f1'; it is supported for the loss of the validation only"),
    ],
)
def test_a_plateau_of_another_kind_is_refused(configured, configure, why):
    """The policy would judge something else."""
    with pytest.raises(SetupRefused, match=why):
        built(configured, configure, validation_step=lambda self, batch: None)


def test_a_plateau_without_a_validation_is_refused(configured):
    """There would be nothing to judge."""
    with pytest.raises(SetupRefused, match="needs a validation"):
        built(configured, plateau())


def test_a_momentum_that_a_scheduler_cycles_is_set_before_each_update(configured):
    """Also after a state was restored."""

    def cycling(self):
        one = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [one], [{"scheduler": OneCycleLR(one, 0.1, total_steps=6), "interval": "step"}]

    setup, anew = built(configured, cycling), built(configured, cycling)
    theirs, (stepped,) = cycling(having("setup")())
    (group,), seen = setup.optimizer.param_groups, []
    for step in range(1, 5):
        seen.append(group["momentum"])
        assert seen[-1] == theirs[0].param_groups[0]["momentum"]
        setup.task.on_step_end(setup.model, step)
        theirs[0].step()
        stepped["scheduler"].step()
    assert len(set(seen)) > 2
    anew.task.load_state_dict(setup.task.state_dict())
    assert anew.optimizer.param_groups[0]["momentum"] == group["momentum"]
