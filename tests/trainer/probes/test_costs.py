"""The check of a run before it begins, as `tolariad check` starts it."""

from __future__ import annotations

import json
import os
import tempfile
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from tolariad.trainer.probes.answering import tried
from tolariad.trainer.probes.messages import EstimateCosts


def check(template, configuration):
    """Return the exit code, the answer and the errors of the process."""
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        request.write(msgspec.json.encode(EstimateCosts(config=configuration.decode())))
        request.seek(0)
        given = {"errors": errors.fileno(), "passed": {0: request.fileno()}}
        where = {"environment": os.environ, "folder": Path.cwd(), "log": answer.fileno(), "shells": 0}
        process = template.start(["--trial"], program="tolariad.trainer", **where, **given)
        code = process.wait(300)
        answer.seek(0)
        errors.seek(0)
        return code, answer.read(), errors.read()


def check_here(configuration):
    """Return the refusal, and the exit code."""
    return tried(EstimateCosts(config=configuration.decode()))


def test_the_template_is_a_task_that_works(tmp_path, template, configured):
    """The template is built and run for real batches; its output does not mix with the answer."""
    task = tmp_path / "task.py"
    text = files("tolariad.trainer.tasks").joinpath("template.py").read_text(encoding="utf-8")
    task.write_text(text + "\nprint('hello')\n")
    code, answer, errors = check(template, configured(f"{task}:MyTask", epochs=2))
    assert code == 0, errors
    answer = json.loads(answer)
    assert answer["parameters"] == 2 * 256 + 256 + 256 * 256 + 256 + 256 * 2 + 2
    assert (answer["steps_per_epoch"], answer["batch_samples"]) == (32, 64)
    assert answer["checkpoint_bytes"] > 4 * answer["parameters"] * 3
    assert answer["step_ms"] > 0
    assert answer["journal_gb_day"] > 0
    assert answer["evaluate_ms"] > 0
    assert set(answer["metrics"]) == {"loss", "accuracy"}
    assert b"hello" in errors


SLOTTED = """
    def seed_slots(self, model):
        from tolariad.trainer.seeds import SeedSlot, attach

        attach(model, "0", SeedSlot("hidden"))
        model[1].unused = torch.nn.Identity()
        attach(model, "1.unused", SeedSlot("lost"))

"""


def test_slots_are_told_with_what_they_see(tmp_path, configured):
    """A slot at a module that the model never calls has no input."""
    task = tmp_path / "task.py"
    template = files("tolariad.trainer.tasks").joinpath("template.py").read_text(encoding="utf-8")
    task.write_text(template.replace("    def loss(", f"{SLOTTED}    def loss("))
    answer, code = check_here(configured(f"{task}:MyTask", epochs=2))

    assert code == 0, answer
    assert [(one.name, one.shape) for one in answer.slots] == [("hidden", (64, 256)), ("lost", None)]


def test_the_rates_and_the_trained_parameters_are_those_of_the_task(tmp_path, configured):
    """Its groups keep their ratio to the first, a frozen parameter is not counted."""
    task = tmp_path / "task.py"
    template = files("tolariad.trainer.tasks").joinpath("template.py").read_text(encoding="utf-8")
    own = """
    def optimizer(self, model, cfg):
        layers = [one for one in model.modules() if isinstance(one, torch.nn.Linear)]
        layers[0].requires_grad_(False)
        layers[2].bias.requires_grad_(False)
        first, last = list(layers[0].parameters()) + list(layers[1].parameters()), [layers[2].weight]
        return torch.optim.SGD([{"params": first, "name": "body"}, {"params": last, "lr": 0.3}], lr=0.1)

"""
    task.write_text(template.replace("    def loss(", f"{own}    def loss("))
    answer, code = check_here(configured(f"{task}:MyTask", epochs=2, learning_rate={"base_lr": 0.01}))
    assert code == 0, answer
    assert answer.trainable == 256 * 256 + 256 + 256 * 2 < answer.parameters
    rates = [(one.name, one.base_lr) for one in answer.groups]
    assert rates == [("body", 0.01), ("group_1", pytest.approx(0.03))]


def test_a_task_that_fails_gets_78_and_a_sentence(tmp_path, configured):
    """The answer is still JSON, with the task's traceback."""
    task = tmp_path / "task.py"
    task.write_text("class Mine:\n    def __init__(self): raise KeyError('lost')\n")
    refused, code = check_here(configured(f"{task}:Mine", epochs=2))
    assert code == 78
    assert "KeyError: 'lost'" in refused.error
    assert "task.py" in refused.traceback


def test_an_evaluation_that_fails_is_found_by_the_check(tmp_path, configured):
    """In seconds, and not after the first epoch of a run."""
    task = tmp_path / "task.py"
    template = files("tolariad.trainer.tasks").joinpath("template.py").read_text(encoding="utf-8")
    task.write_text(template.replace("logits = model(points)\n", "logits = model(points)[99]\n"))
    refused, code = check_here(configured(f"{task}:MyTask", epochs=2))
    assert code == 78
    assert "evaluate(model, batch) raises IndexError on the first batch of the validation data" in refused.error
    assert "logits = model(points)[99]" in refused.traceback


CLOCKED = """
import time, torch
from torch import nn
from torch.utils.data import Dataset
class Clocked(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return {"x": torch.ones(2), "read_at": time.perf_counter_ns()}
class Task:
    def model(self, cfg): return nn.Linear(2, 1)
    def train_data(self, cfg): return Clocked()
    def loss(self, model, batch): return model(batch["x"]).mean()
"""


@pytest.mark.parametrize("ignored", [[], ["read_at"]], ids=["", "ignored"])
def test_data_that_do_not_repeat_themselves_are_told_before_the_run(tmp_path, configured, ignored):
    """With the field, and the key that leaves it out."""
    (tmp_path / "task.py").write_text(CLOCKED)
    found, code = check_here(configured(f"{tmp_path}/task.py:Task", epochs=1, data={"ignore": ignored}))
    assert code == 0
    told = [note for note in found.notes if "differs when it is read again" in note]
    assert ["data.ignore: [read_at]" in note for note in told] == [True] * (not ignored)
