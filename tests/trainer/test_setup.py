"""A run is built the same way every time, and what cannot be trained is refused with a sentence."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import torch
from torch import nn

from tolariad.core.calc.detection.rules import Finding
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.gradients import forward_backward
from tolariad.trainer.step.validate import validate
from tolariad.trainer.tasks.task import FoundTask


class Small:
    """A task whose parts the tests replace."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    def train_data(self, cfg):
        return (torch.ones(10, 2),)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        return model(batch[0]).mean()

    def evaluate(self, model, batch):
        return {}


@pytest.fixture
def small(configured, monkeypatch):
    """Build `Small`, with methods replaced and configuration keys given."""

    def make(methods=None, **explicit):
        task = Small()
        for name, method in (methods or {}).items():
            setattr(task, name, method)
        monkeypatch.setattr("tolariad.trainer.build.find_task", lambda _: FoundTask(task, "cd"))
        return build(configured("digits", **explicit))

    return make


def test_a_task_that_clips_tells_its_own_norm(small):
    """A callable `clip_gradients` is used; anything else is ignored."""
    setup = small({"clip_gradients": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3)})
    norm = forward_backward(setup, [(torch.ones(10, 2),)]).grad_norm
    clipped = nn.utils.get_total_norm([parameter.grad for parameter in setup.model.parameters()])

    assert norm > 0.1
    assert clipped.item() == pytest.approx(1e-3, rel=1e-3)
    assert small({"clip_gradients": None}).clip is None


def test_a_task_names_the_unit_of_a_loss_that_may_be_negative(small):
    """With one a negative loss that rises far causes a rollback; without one it does not. Others are refused."""
    for options, goes_back in (({"loss_unit": 2}, True), (None, False)):
        watch = small(options).watch
        losses = [*(-1.0 - 0.01 * (n % 7) for n in range(600)), *[900.0] * 40]
        found = {one.finding for loss in losses if (one := watch.judge(loss, 1.0, 0.1)) is not None}
        assert bool(found & {Finding.SUSTAINED, Finding.EXPLOSION}) is goes_back
    for wrong in (0, -1.0, float("inf"), float("nan"), True, "nats"):
        with pytest.raises(SetupRefused, match="loss_unit must be a positive number"):
            small({"loss_unit": wrong})


@pytest.mark.parametrize(
    ("given", "explicit", "threads"),
    [("1", {"torch_threads": None}, 1), ("0", {"torch_threads": None}, None), ("1", {"torch_threads": 2}, 2)],
)
def test_torch_has_as_many_threads_as_its_environment_says(small, monkeypatch, given, explicit, threads):
    """Unless the configuration says otherwise. What is no count of cores means all cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    before = torch.get_num_threads()
    try:
        small(**explicit)
        assert torch.get_num_threads() == (threads or len(os.sched_getaffinity(0)))
    finally:
        torch.set_num_threads(before)


def test_a_task_without_validation_has_no_data_for_it(monkeypatch, configured):
    """Neither `val_data` nor `evaluate`."""

    class Unvalidated:
        model, train_data, loss = Small.model, Small.train_data, Small.loss

    monkeypatch.setattr("tolariad.trainer.build.find_task", lambda _: FoundTask(Unvalidated(), "cd"))
    assert build(configured("digits")).validation is None


def test_equal_configurations_give_equal_parameters_and_draws(small):
    """The model is the same whatever was drawn before, and whatever building the data draws."""
    one = small()
    drawn = torch.rand(3)
    random.random(), torch.rand(7)
    two = small({"train_data": lambda cfg: (torch.rand(10, 2),)})
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    other = small(rng_seed=8)
    assert not torch.equal(next(one.model.parameters()), next(other.model.parameters()))


def test_the_environment_says_what_changes_bits(small):
    """Threads, grade, device, and hashes of model, task and configuration."""
    environment = small(torch_threads=1).environment
    assert (environment.threads, environment.device, environment.determinism) == (1, "cpu", "strict")
    assert environment.task_hash == "cd"
    other = small({"model": lambda cfg: nn.Linear(2, 1)}, epochs=3).environment
    assert other.model_hash != environment.model_hash
    assert other.config_hash != environment.config_hash
    assert torch.are_deterministic_algorithms_enabled()


def test_the_last_partial_batch_is_a_step(small):
    """10 samples in batches of 4 are 3 steps."""
    assert small(batch_size=4).steps_per_epoch == 3


def test_steps_are_updates_where_micro_batches_are_gathered(small):
    """5 batches in updates of 2 are 3 steps, and the schedule is computed for them."""
    made = small(batch_size=2, accumulate=2, epochs=4)
    assert made.steps_per_epoch == 3
    assert made.rates.groups[0].schedule.total_steps == 12


class Endless:
    """Infinite batches without a length."""

    def __iter__(self):
        while True:
            yield (torch.ones(4, 2),)


def test_data_without_a_length_draws_its_rates_for_the_steps_of_the_run(small):
    """An epoch of the schedule is an equal share of the steps, whatever the real length of an epoch."""
    rates = {"base_lr": 0.1, "min_lr": 0.01, "warmup_epochs": 2, "policy": "cosine"}
    made = small({"train_data": lambda cfg: Endless()}, epochs=10, stop={"steps": 95}, learning_rate=rates)
    schedule = made.rates.groups[0].schedule
    assert made.steps_per_epoch == 0
    assert (schedule.total_steps, schedule.warmup_steps) == (95, 20)
    assert any(
        "schedules are computed for 95 steps (stop.steps), in 10 epochs of 10 steps" in note for note in made.notes
    )
    known = small(epochs=10, stop={"steps": 5}, batch_size=5)
    assert (known.steps_per_epoch, known.rates.groups[0].schedule.total_steps) == (2, 20)


def test_data_without_a_length_needs_none_for_constant_rates(small):
    """Nothing is computed from it. Every other schedule is refused with what to do."""
    constant = {"base_lr": 0.1, "warmup_epochs": 0, "policy": "constant"}
    made = small({"train_data": lambda cfg: Endless()}, epochs=10, learning_rate=constant)
    assert made.rates.groups[0].schedule.total_steps is None
    assert [note for note in made.notes if "an epoch ends where the data ends" in note]
    for other in ({"policy": "cosine"}, {"policy": "step"}, {"warmup_epochs": 2}):
        with pytest.raises(SetupRefused, match=r"does not tell how many batches .* set stop\.steps, .* or train at"):
            small({"train_data": lambda cfg: Endless()}, epochs=10, learning_rate=constant | other)


def test_groups_by_pattern_have_their_own_rates_and_arguments(small):
    """The first match counts, the rest share the defaults; each group follows its own base rate."""
    groups = [{"match": "*.bias", "weight_decay": 0.0, "base_lr": 0.5}, {"match": "0.*", "weight_decay": 0.3}]
    made = small(
        optimizer={"name": "adamw", "groups": groups},
        learning_rate={"base_lr": 0.1, "warmup_epochs": 0, "policy": "constant"},
    )
    held = [(g["weight_decay"], g["lr"], len(g["params"])) for g in made.optimizer.param_groups]
    assert held == [(0.0, 0.5, 2), (0.3, 0.1, 1), (0.01, 0.1, 1)]
    assert made.rates.rates() == {"*.bias": 0.5, "0.*": 0.1, "default": 0.1}


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_forward_passes_have_the_precision_asked_for(small, precision, dtype):
    """Activations use it, in training and validation; parameters, gradients and optimizer state do not."""
    seen = []

    def loss(model, batch):
        out = model(batch[0])
        seen.append(out.dtype)
        return out.float().square().mean()

    def evaluate(model, batch):
        return {"loss": (loss(model, batch), 1)}

    made = small({"loss": loss, "evaluate": evaluate, "val_data": lambda cfg: (torch.ones(4, 2),)}, precision=precision)
    forward_backward(made, [(torch.ones(4, 2),)])
    made.optimizer.step()
    validate(made, list)
    assert seen == [dtype, dtype]
    assert made.environment.precision == precision
    state = [value for held in made.optimizer.state.values() for value in held.values()]
    kept = [*made.model.parameters(), *(parameter.grad for parameter in made.model.parameters()), *state]
    assert {tensor.dtype for tensor in kept} == {torch.float32}


def test_rates_are_written_over_whatever_stood_there(small):
    """Also after load_state_dict replaced the optimizer's groups."""
    made = small(learning_rate={"base_lr": 0.1, "warmup_epochs": 0, "policy": "constant"})
    made.optimizer.load_state_dict(made.optimizer.state_dict())
    made.optimizer.param_groups[0]["lr"] = 99.0
    made.optimizer.step()
    assert made.optimizer.param_groups[0]["lr"] == 0.1


def test_a_tasks_optimizer_keeps_the_ratio_of_its_groups(small):
    """The first group gets the configured rate; the others keep their ratio to it."""

    def optimizer(model, cfg):
        return torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[1].parameters(), "lr": 0.5}]
        )

    made = small({"optimizer": optimizer}, learning_rate={"base_lr": 0.2, "warmup_epochs": 0, "policy": "constant"})
    assert [group["lr"] for group in made.optimizer.param_groups] == [0.2, 0.1]


def two_halves(model):
    return {"0": torch.optim.LBFGS(model[0].parameters()), "1": torch.optim.SGD(model[1].parameters())}


class DistributedDataParallel(nn.Linear):
    """Has the name of torch's."""


@pytest.mark.parametrize(
    ("methods", "explicit", "why"),
    [
        ({"model": lambda cfg: 5}, {}, "must be a torch.nn.Module, not a int"),
        ({"model": lambda cfg: nn.LazyLinear(2)}, {}, "weight gets its shape from the first batch"),
        ({"model": lambda cfg: DistributedDataParallel(1, 1)}, {}, "wrapped in DistributedDataParallel"),
        ({"model": lambda cfg: nn.ReLU()}, {}, "no parameter that needs a gradient"),
        ({"optimizer": lambda model, cfg: 5}, {}, "must return a torch Optimizer, not a int"),
        ({"optimizer": lambda m, c: torch.optim.LBFGS(m.parameters())}, {"accumulate": 2}, "set accumulate to 1"),
        ({"optimizers": two_halves}, {}, r"0: LBFGS evaluates .* there are other optimizers"),
        ({"optimizer": lambda m, c: torch.optim.SGD(m[0].parameters())}, {}, r"holds 1\.weight, 1\.bias"),
        ({"train_data": lambda cfg: (torch.ones(3), torch.ones(4))}, {}, "same length"),
        ({"train_data": lambda cfg: 7}, {}, "give a Dataset"),
        ({"state_dict": lambda: {"a": {1}}}, {}, r"task\.a: a builtins\.set"),
        ({}, {"optimizer": {"groups": [{"match": "nope"}]}}, "'nope' matches no parameter"),
        ({"train_data": lambda cfg: Endless()}, {}, r"Give the loader a __len__, set stop\.steps"),
        ({}, {"device": "cuda:7"}, "cuda"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_trained_is_refused(small, methods, explicit, why):
    """It is refused before the first step, with the fault and what to do."""
    with pytest.raises(SetupRefused, match=why):
        small(methods, **explicit)


def test_the_package_and_the_life_lines_load_no_torch():
    """The process must hold its lock before the import of torch, and other packages read the template as text."""
    modules = "tolariad.lifelines, tolariad.trainer, tolariad.trainer.process.lifelines, tolariad.trainer.__main__"
    probe = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
