"""A method whose name is almost that of a task's is named; the user's own names are left alone."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.gradients import forward_backward
from tolariad.trainer.tasks.names import misnamed, uncallable
from tolariad.trainer.tasks.task import FoundTask, find_task


class Whole:
    """A task with helpers of its own."""

    helper_model = nn.Linear(1, 1)

    def model(self, cfg): ...
    def train_data(self, cfg): ...
    def val_data(self, cfg): ...
    def loss(self, model, batch): ...
    def evaluate(self, model, batch): ...
    def losses(self, outputs): ...
    def evaluate_one(self, image): ...
    def make_transform(self): ...
    def _on_epochs_end(self): ...


@pytest.fixture
def small_task(configured):
    """Build a small task with these methods instead of its own."""

    def make(methods):
        task = Whole()
        own = {
            "model": lambda cfg: nn.Linear(2, 1),
            "train_data": lambda cfg: (torch.ones(4, 2),),
            "val_data": lambda cfg: None,
            "loss": lambda model, batch: model(batch[0]).mean(),
        }
        vars(task).update(own | methods)
        return build(configured("digits"), given=FoundTask(task, ""))

    return make


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_epochs_end", "on_epoch_end"),
        ("on_train_epoch_end", "on_epoch_end"),
        ("on_steps_end", "on_step_end"),
        ("clip_gradient", "clip_gradients"),
        ("configure_optimizers", "optimizer"),
        ("load_statedict", "load_state_dict"),
        ("param_group", "param_groups"),
    ],
)
def test_a_name_that_is_almost_right_is_named(name, meant):
    """Those of other trainers too."""
    task = type("Almost", (Whole,), {name: lambda self: None, "__module__": __name__})()
    assert list(misnamed(task)) == [(name, meant)]
    setattr(task, meant, lambda: None)
    assert list(misnamed(task)) == []


def test_helpers_and_foreign_methods_are_left_alone():
    """A method beside the right one is a helper; what a library's base class brings is not the user's."""
    assert list(misnamed(Whole())) == []
    assert list(misnamed(None)) == []
    assert list(misnamed(type("Both", (Whole, nn.Module), {"__module__": __name__})())) == []


def test_a_task_that_is_a_module_is_looked_at_too():
    """Only the functions that it defines."""
    module = types.ModuleType("mine")
    exec("def on_epochs_end(model, epoch, metrics): ...\nfrom torch.nn.functional import mse_loss", vars(module))
    assert list(misnamed(module)) == [("on_epochs_end", "on_epoch_end")]


def test_a_missing_method_under_another_name_is_told_how_to_rename(tmp_path, monkeypatch):
    """Instead of pointing to the template."""
    (tmp_path / "renamed.py").write_text("class Mine:\n    def train_dataset(self, cfg): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupRefused, match=r"has no method model, train_data.*; rename train_dataset to train_data"):
        find_task("./renamed.py:Mine")


def test_a_run_says_the_name_once_in_its_log(small_task, caplog):
    """And trains."""
    small_task({"on_epochs_end": lambda model, epoch, metrics: None})
    assert [one.message for one in caplog.records] == [
        "The task's method on_epochs_end is never called. Is on_epoch_end meant? docs/task.md lists all names."
    ]


def test_keys_beside_the_loss_are_metrics_of_the_step(small_task, caplog):
    """They are collected, and nothing is said about them."""
    setup = small_task({"loss": lambda model, batch: {"loss": model(batch[0]).mean(), "one": 1.0, "two": 2.0}})
    for _ in range(3):
        forward_backward(setup, [(torch.ones(4, 2),)])
    assert setup.metrics.so_far() == {"one": 1.0, "two": 2.0}
    assert caplog.records == []


def test_a_dict_without_the_loss_is_refused_with_its_keys(small_task):
    """The sentence says which name the loss needs."""
    setup = small_task({"loss": lambda model, batch: {"ce": model(batch[0]).mean()}})
    with pytest.raises(SetupRefused, match=r"returns a dict without `loss`; it has ce. Give .* the name `loss`"):
        forward_backward(setup, [(torch.ones(4, 2),)])


@pytest.mark.sample(2)
@pytest.mark.parametrize("steps_in", ["on_step_end", "loss"])
@pytest.mark.parametrize("kind", ["cosine", "late", "plateau"])
def test_a_scheduler_that_is_stepped_gets_one_warning_with_its_line(daemon_in, configured, tmp_path, kind, steps_in):
    """At the first change of a rate or, if it changes none yet, at the end of the epoch. No step uses its rates."""
    (tmp_path / "scheduled.py").write_text(SCHEDULED)
    options = {"kind": kind, "steps_in": steps_in}
    name = f"{tmp_path / 'scheduled.py'}:Mine"
    daemon = daemon_in("run", epochs=3)
    daemon.train_here(configured(name, epochs=3, task_options=options))
    plain = daemon_in("plain", epochs=3)
    plain.train_here(configured(name, epochs=3, task_options={**options, "kind": "none"}))
    told = [one for one in daemon.reports if type(one).__name__ == "LrViolationDetected"]
    line = 1 + next(n for n, text in enumerate(SCHEDULED.splitlines()) if ".scheduler.step(" in text)
    assert len(told) == 1
    assert told[0].what.startswith("a torch LR scheduler was stepped (")
    assert told[0].where.startswith(f"{tmp_path / 'scheduled.py'}:{line} in ")
    assert [one.loss for one in daemon.steps.values()] == [one.loss for one in plain.steps.values()]


@pytest.mark.parametrize("kept", [False, True])
def test_a_scheduler_that_a_hook_makes_anew_is_named_as_one(daemon_in, configured, tmp_path, kept):
    """It may be gone before its rate is found. One that is kept until the next takes its place has its class named."""
    source = SCHEDULED.replace(
        'self.scheduler = KINDS[kind](optimizer) if kind != "none" else None', "self.own = optimizer"
    )
    source = (
        source.partition("    def on_step_end")[0]
        + f"""
    def on_step_end(self, model, step):
        scheduler = lr_scheduler.ExponentialLR(self.own, 0.5)
        scheduler.step()
        self.kept = scheduler if {kept} else None
"""
    )
    (tmp_path / "anew.py").write_text(source)
    daemon = daemon_in("run", epochs=2)
    daemon.train_here(configured(f"{tmp_path / 'anew.py'}:Mine", epochs=2, task_options={"kind": "", "steps_in": ""}))
    (told,) = [one for one in daemon.reports if type(one).__name__ == "LrViolationDetected"]
    named = "ExponentialLR" if kept else "made in a call, and gone after it"
    assert told.what == f"a torch LR scheduler was stepped ({named})"
    assert "in on_step_end" in told.where


SCHEDULED = """
import warnings
import torch
from torch import nn
from torch.optim import lr_scheduler

warnings.simplefilter("ignore")
KINDS = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "late": lambda optimizer: lr_scheduler.StepLR(optimizer, 1000),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, cooldown=0, threshold=1e9),
}

class Mine:
    def model(self, cfg):
        self.options = cfg.task_options
        return nn.Linear(2, 1)

    def optimizer(self, model, cfg):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kind = self.options["kind"]
        self.scheduler = KINDS[kind](optimizer) if kind != "none" else None
        return optimizer

    def train_data(self, cfg):
        return (torch.ones(40, 2),)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        if self.options["steps_in"] == "loss":
            self.schedule()
        return (model(batch[0]) ** 2).mean()

    def evaluate(self, model, batch):
        return {}

    def on_step_end(self, model, step):
        if self.options["steps_in"] == "on_step_end":
            self.schedule()

    def schedule(self):
        if self.scheduler is not None:
            self.scheduler.step(*([1.0] if self.options["kind"] == "plateau" else []))
"""


def test_a_hook_with_other_arguments_is_refused_before_it_is_called(small_task):
    """It would raise after an epoch of hours. More arguments with defaults, and any number of them, are right."""
    with pytest.raises(
        SetupRefused, match=r"has on_epoch_end\(model\), .* called as on_epoch_end\(model, epoch, metrics\)"
    ):
        small_task({"on_epoch_end": lambda model: None})
    fine = type("Fine", (Whole,), {"on_epoch_end": lambda self, *given: None})()
    fine.load_state_dict = {}.update
    fine.on_step_end = lambda model, step, often=3: None
    assert list(uncallable(fine)) == []
    # As are the hooks that ask for the context.
    fine.on_step_end = lambda model, step, context: None
    fine.on_epoch_end = lambda model, epoch, metrics, *, context: None
    assert list(uncallable(fine)) == []
    fine.load_state_dict = lambda state, context: None
    assert [has for has, _ in uncallable(fine)] == ["load_state_dict(state, context)"]
