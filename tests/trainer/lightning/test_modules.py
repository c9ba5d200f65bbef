"""The supported parts of a LightningModule, the order of its calls, and the parts that are refused by name."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from tests.trainer.lightning.stub import LightningModule, Line, Rows
from tests.trainer.probes.conftest import Trained
from tolariad.core.calc.settings.reading import read_settings
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lightning.making import Parts
from tolariad.trainer.lightning.task import LightningTask
from tolariad.trainer.probes.messages import Evaluate
from tolariad.trainer.tasks.task import FoundTask, find_task

STUB = Path(__file__).with_name("stub.py")


def task_of(module, **named):
    return LightningTask(Parts(module, named.__getitem__), "ab" * 32)


def settings(**given):
    rates = {"learning_rate": {"policy": "constant", "warmup_epochs": 0}}
    return read_settings({"task": "lightning:mine.py:Mine", "rng_seed": 1, "device": "cpu", **rates, **given})


def built(configured, module, **given):
    """A run of the module, up to its first step."""
    task = task_of(module, Rows=Rows)
    return build(configured("lightning:mine.py:Mine", epochs=2, **given), given=FoundTask(task, "", task.schedules))


def having(name, body=lambda self, *_: None):
    return type("Mine", (Line,), {name: body})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("optimizer_step", "Mine.optimizer_step is overridden, but tolariad does not call it: the rates"),
        ("configure_callbacks", "callbacks are not called; move what they do"),
        ("on_train_end", "may end at any time and start again"),
        ("of_a_newer_version", "tolariad does not know this hook"),
        ("log", "give the method another name"),
    ],
)
def test_a_hook_that_would_not_be_called_is_refused_by_name(name, why):
    """Also one that this version of tolariad has never heard of."""
    with pytest.raises(SetupRefused, match=why):
        task_of(having(name)).model(settings())


def test_hooks_of_predictions_are_no_obstacle():
    """They are no part of a training."""
    assert isinstance(task_of(having("predict_step")).model(settings()), Line)


def test_the_test_of_a_module_is_its_test_step_on_its_test_data(daemon_in, configured):
    """`tolariad test`: the mean over all samples, also of a smaller last batch, and what its last hook logs."""
    run = Trained(daemon_in("run", 1), configured(f"lightning:{STUB}:Tested", epochs=1))
    found, code = run.ask(Evaluate)
    x = torch.arange(32.0).reshape(16, 2)
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(run.setup.model.line(x), x.sum(1, keepdim=True)).item()

    assert (code, found.data, found.samples) == (0, "test", 16)
    assert found.metrics == {"test_loss": pytest.approx(loss, rel=1e-6), "greatest": 31.0, "setups": 2.0}


def test_test_data_without_a_test_step_are_refused(daemon_in, configured):
    """As by Lightning. A module that has neither is validated, if it has a validation."""
    task = task_of(having("test_dataloader"))
    task.model(settings())
    with pytest.raises(SetupRefused, match="there is a test_dataloader, but Mine has no test_step"):
        task.test_data(settings())
    assert Trained(daemon_in("run", 1), configured(f"lightning:{STUB}:Noisy", epochs=1)).ask(Evaluate)[0].data == (
        "validation"
    )


class Manual(Line):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "given", "why"),
    [
        (Manual, {}, r"optimizes manually .*training_step\(model, batch, run\)"),
        (Line, {"task_options": {"lrr": 0.1}}, "task_options.lrr: Line does not take this argument; did you mean lr"),
        (
            Line,
            {"task_options": {"datamodule": "Rows", "batch": 1}},
            "neither Line nor Rows takes this argument; did you mean batch_size",
        ),
        (type("Needs", (Line,), {"__init__": lambda self, width: None}), {}, "missing a required argument: 'width'"),
        (
            Line,
            {"learning_rate": {"base_lr": 0.5, "policy": "constant"}},
            r"learning_rate.base_lr is 0.5, .*task_options",
        ),
        (Line, {"learning_rate": {"policy": "cosine"}}, "learning_rate.policy is cosine"),
        (Line, {"task_options": {"gradient_clip_algorithm": "max"}}, "must be norm or value, not 'max'"),
        (Line, {"task_options": {"gradient_clip_val": -1.0}}, "must be a number from 0 on, not -1.0"),
        (having("on_after_backward"), {"accumulate": 2}, "accumulate must be 1"),
        (Line, {"compile": True}, "compile is true, but Line has no forward, which would be compiled"),
        (having("training_step", lambda self, dataloader_iter: None), {}, "dataloader_iter is not supported"),
        (lambda: torch.nn.Linear(1, 1), {}, "a LightningModule is needed, and Linear is none"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_way_out(module, given, why):
    """Each by its name, before anything is trained."""
    with pytest.raises(SetupRefused, match=why):
        task_of(module, Rows=Rows).model(settings(**given))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (lambda self: [Rows().train_dataloader()] * 2, "returns 2 loaders"),
        (lambda self: {"a": Rows().train_dataloader()}, "returns loaders by name"),
        (lambda self: None, "has no train_dataloader"),
    ],
)
def test_several_loaders_are_refused(found, why):
    """One is supported, also in a list."""
    task = task_of(having("train_dataloader", found))
    task.model(settings())
    with pytest.raises(SetupRefused, match=why):
        task.train_data(settings())


def test_a_list_of_batches_is_iterated_over_and_not_taken_for_samples(configured):
    """As Lightning does with what is no DataLoader."""
    rows = [(torch.ones(3, 2), torch.ones(3, 1)), (torch.ones(5, 2), torch.ones(5, 1))]
    setup = built(configured, having("train_dataloader", lambda self: iterating(rows)))
    assert [len(x) for x, _ in setup.train.epoch(1, 0)] == [3, 5]


def iterating(rows):
    return type("Batches", (), {"__iter__": lambda self: iter(rows), "__len__": lambda self: len(rows)})()


def test_a_step_without_a_loss_is_refused(configured):
    """Lightning would skip the batch."""
    setup = built(configured, having("training_step", lambda self, batch: None))
    with pytest.raises(SetupRefused, match="training_step returns no loss"):
        setup.task.loss(setup.model, next(iter(setup.train.epoch(1, 0))))


def test_hooks_are_called_in_lightnings_order(configured):
    """Two steps of two batches each, an epoch's end, and a validation."""
    called = []
    names = ["setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"]
    names += ["on_train_batch_end", "on_before_optimizer_step", "on_train_epoch_end", "on_validation_start"]
    names += ["on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end"]

    def noting(name):
        return lambda self, *_: called.append(name.removeprefix("on_"))

    members = {name: noting(name) for name in names}
    members["validation_step"] = lambda self, batch, batch_idx: called.append(f"validation {batch_idx}")
    setup = built(
        configured, type("Mine", (Line,), members), accumulate=2, task_options={"datamodule": "Rows", "batch_size": 4}
    )
    task, model, batches = setup.task, setup.model, list(setup.train.epoch(1, 0))
    for step in (1, 2):
        for batch in batches[2 * step - 2 : 2 * step]:
            task.loss(model, batch)
        task.clip_gradients(model)
        task.on_step_end(model, step)
    for batch in batches[:2]:
        task.evaluate(model, batch)
    task.on_validation_end(model)
    task.on_epoch_end(model, 1, {})
    first = ["train_batch_start", "train_batch_end", "train_batch_start", "before_optimizer_step", "train_batch_end"]
    assert called == [
        *("setup", "fit_start", "train_start", "train_epoch_start"),
        *(first + first),
        *("validation_start", "validation_epoch_start", "validation 0", "validation 1"),
        *("validation_epoch_end", "validation_end", "train_epoch_end"),
    ]


def test_the_end_of_a_batch_is_not_called_for_a_skipped_step(configured):
    """Of two steps the first is skipped: no update, no hook after it."""
    ended = []
    setup = built(configured, having("on_train_batch_end", lambda self, outputs, batch, index: ended.append(index)))
    for batch in list(setup.train.epoch(1, 0))[:2]:
        setup.task.loss(setup.model, batch)
    setup.task.on_step_end(setup.model, 1)
    assert ended == [1]


class Stateful(Line):
    """Its attributes change, and a list is saved by its own hooks."""

    def __init__(self):
        super().__init__()
        self.count, self.fixed, self.seen = 0, 3, []

    def on_train_batch_end(self, outputs, batch, index):
        self.count += 1
        self.seen.append(float(outputs["loss"]))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = list(self.seen)

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]


def test_positions_and_changed_attributes_are_part_of_the_state(configured):
    """A module that is built anew finds them as they were; what did not change is not kept."""
    setup = built(configured, Stateful)
    task, batches = setup.task, list(setup.train.epoch(1, 0))
    for step, batch in enumerate(batches[:3], 1):
        task.loss(setup.model, batch)
        task.on_step_end(setup.model, step)
    state = msgspec.json.decode(msgspec.json.encode(task.state_dict()))
    assert state["changed"] == {"count": 3}

    anew = built(configured, Stateful)
    anew.task.load_state_dict(state)
    assert (anew.model.count, anew.model.fixed, anew.model.seen) == (3, 3, setup.model.seen)
    assert (anew.model.trainer.global_step, anew.model.trainer.current_epoch) == (3, 0)
    anew.task.load_state_dict(built(configured, Stateful).task.state_dict())
    assert anew.model.count == 0


def test_the_trainer_of_a_module_knows_lengths_and_refuses_the_rest(configured):
    """A setting that would be ignored is refused; a missing one is an AttributeError with the names that exist."""
    trainer = built(configured, Line, accumulate=3).model.trainer
    assert (trainer.estimated_stepping_batches, trainer.max_epochs, trainer.num_training_batches) == (4, 2, 4)
    assert (trainer.is_global_zero, trainer.world_size, trainer.logger) == (True, 1, None)
    assert not hasattr(trainer, "strategy")
    with pytest.raises(
        AttributeError, match=r"self.trainer.strategy: tolariad has no Lightning trainer; there are acc"
    ):
        _ = trainer.strategy
    with pytest.raises(SetupRefused, match="should_stop is set to True: this has no effect"):
        trainer.should_stop = True


class Mean:
    """As a metric of torchmetrics: its value is no mean over batches."""

    def __init__(self):
        self.values, self._forward_cache = [], None

    def update(self, value):
        self.values.append(float(value))

    def __call__(self, value):
        self.update(value)
        self._forward_cache = value

    def compute(self):
        return max(self.values) - min(self.values)

    def reset(self):
        self.values = []


class Logging(Line):
    def __init__(self):
        super().__init__()
        self.metric = Mean()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train/loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log_dict({"step": batch_idx})
        return loss

    def validation_step(self, batch, batch_idx):
        self.metric.update(batch_idx)
        self.log("spread", self.metric)
        self.log("most", batch_idx, reduce_fx="max")
        self.log("weighted", float(batch_idx), batch_size=3)
        self.log("val_loss", torch.tensor(float(batch_idx)))

    def on_validation_epoch_end(self):
        self.log("whole", 7)
        self.metric_was = list(self.metric.values)

    def on_train_epoch_end(self):
        self.log("lost", 1.0)


def test_what_is_logged_is_recorded_under_its_name(configured):
    """Step values beside the loss, means of the validation, and what stands for all of it; `val_loss` is the loss."""
    setup = built(configured, Logging, task_options={"datamodule": "Rows"})
    task, batches = setup.task, list(setup.train.epoch(1, 0))
    found = task.loss(setup.model, batches[0])
    assert found["step"] == 0
    assert torch.equal(found["train/loss"], found["loss"])
    assert not found["train/loss"].requires_grad
    assert found["loss"].requires_grad
    task.evaluate(setup.model, batches[0])
    results = task.evaluate(setup.model, batches[1])
    assert results == {"weighted": (3.0, 3), "loss": torch.tensor(1.0)}
    assert task.on_validation_end(setup.model) == {"spread": 1.0, "most": 1.0, "whole": 7.0}
    assert (setup.model.metric_was, setup.model.metric.values) == ([0.0, 1.0], [])


def test_a_value_that_is_logged_in_vain_is_said_once(configured, caplog):
    """The place, and where to log instead."""
    setup = built(configured, Logging, task_options={"datamodule": "Rows"})
    with caplog.at_level(logging.WARNING, "tolariad"):
        for epoch in (1, 2):
            setup.task.on_epoch_end(setup.model, epoch, {})
    assert [one.getMessage().split(";")[0] for one in caplog.records] == [
        "self.log('lost') in on_train_epoch_end records nothing"
    ]


@pytest.mark.parametrize(
    ("value", "options", "why"),
    [
        ("text", {}, "takes a number, a tensor"),
        (1.0, {"reduce_fx": "sum"}, "reduce_fx='sum'.* log the mean"),
        (Mean(), {}, "the metric was updated, but has no value of this step"),
    ],
)
def test_a_value_that_cannot_be_recorded_is_refused(configured, value, options, why):
    """In a training step there is one value a step."""
    setup = built(configured, having("training_step", lambda self, batch: self.log("it", value, **options)))
    with pytest.raises(SetupRefused, match=why):
        setup.task.loss(setup.model, None)


def test_gradients_are_clipped_by_value_too(configured):
    """The norm before clipping is returned, for the detector."""
    options = {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"}
    setup = built(configured, Line, task_options=options)
    for parameter in setup.model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    norm = setup.clip(setup.model)
    assert float(norm) == pytest.approx(2.0 * 3**0.5)
    assert {float(value) for p in setup.model.parameters() for value in p.grad.flatten()} == {0.5}


def test_a_module_is_found_in_a_file_with_its_data_beside_it(tmp_path, monkeypatch, configured):
    """The data module may be in another file; a module without the prefix is refused with the right name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("from tests.trainer.lightning.stub import Line\nclass Net(Line): pass\n")
    (tmp_path / "rows.py").write_text("from tests.trainer.lightning.stub import Rows\nclass Mine(Rows): pass\n")
    setup = build(configured("lightning:./net.py:Net", epochs=1, task_options={"datamodule": "rows.py:Mine"}))
    assert (type(setup.model).__name__, setup.train.batches) == ("Net", 2)
    with pytest.raises(SetupRefused, match=r"is a LightningModule; write lightning:\./net\.py:Net"):
        find_task("./net.py:Net")


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_without_lightning_a_sentence_says_what_to_install(tmp_path, monkeypatch, package):
    """The import of the module's own file fails: nothing else needs it."""
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "net.py"
    path.write_text(f"import {package}.pytorch as pl\n")
    with pytest.raises(SetupRefused, match=r"not installed: pip install 'tolariad\[lightning\]'"):
        find_task(f"lightning:{path}:Net")


def test_the_base_classes_are_known_by_either_package():
    """`lightning` and `pytorch_lightning` have classes of their own."""
    made = task_of(Line, Rows=Rows)
    made.model(settings(task_options={"datamodule": "Rows"}))
    assert isinstance(made.train_data(settings()), DataLoader)
    assert LightningModule.__module__ != Rows.__mro__[1].__module__
