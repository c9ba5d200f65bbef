"""The check of a run before it begins, as `tolariad check` starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tolariad.trainer.check import check as check_here

ROOT = Path(__file__).resolve().parents[2]


def check(tmp_path, configuration):
    path = tmp_path / "config.json"
    path.write_bytes(configuration)
    command = [sys.executable, "-m", "tolariad.trainer", "--check", "--config-json", str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_template_is_a_task_that_works(tmp_path, configured):
    """The template is built and run for real batches; its output does not mix with the answer."""
    task = tmp_path / "task.py"
    template = files("tolariad.trainer.tasks").joinpath("template.py").read_text(encoding="utf-8")
    task.write_text(template + "\nprint('hello')\n")
    done = check(tmp_path, configured(f"{task}:MyTask", epochs=2))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["parameters"] == 2 * 256 + 256 + 256 * 256 + 256 + 256 * 2 + 2
    assert (answer["steps_per_epoch"], answer["batch_samples"]) == (32, 64)
    assert answer["checkpoint_bytes"] > 4 * answer["parameters"] * 3
    assert answer["step_ms"] > 0
    assert answer["journal_gb_day"] > 0
    assert answer["evaluate_ms"] > 0
    assert set(answer["metrics"]) == {"loss", "accuracy"}
    assert "hello" in done.stderr


def test_the_rates_and_the_trained_parameters_are_those_of_the_task(tmp_path, configured, capfdbinary):
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
    configuration = tmp_path / "config.json"
    configuration.write_bytes(configured(f"{task}:MyTask", epochs=2, learning_rate={"base_lr": 0.01}))
    code = check_here(configuration)
    out = capfdbinary.readouterr().out
    assert code == 0, out
    answer = json.loads(out)
    assert answer["trainable"] == 256 * 256 + 256 + 256 * 2 < answer["parameters"]
    rates = [(one["name"], one["base_lr"]) for one in answer["groups"]]
    assert rates == [("body", 0.01), ("group_1", pytest.approx(0.03))]


def test_a_task_that_fails_gets_78_and_a_sentence(tmp_path, configured, capfdbinary):
    """The answer is still JSON, with the task's traceback."""
    task = tmp_path / "task.py"
    task.write_text("class Mine:\n    def __init__(self): raise KeyError('lost')\n")
    configuration = tmp_path / "config.json"
    configuration.write_bytes(configured(f"{task}:Mine", epochs=2))
    assert check_here(configuration) == 78
    answer = json.loads(capfdbinary.readouterr().out)
    assert "KeyError: 'lost'" in answer["error"]
    assert "task.py" in answer["traceback"]


def test_an_evaluation_that_fails_is_found_by_the_check(tmp_path, configured, capfdbinary):
    """In seconds, and not after the first epoch of a run."""
    task = tmp_path / "task.py"
    template = files("tolariad.trainer.tasks").joinpath("template.py").read_text(encoding="utf-8")
    task.write_text(template.replace("logits = model(points)\n", "logits = model(points)[99]\n"))
    configuration = tmp_path / "config.json"
    configuration.write_bytes(configured(f"{task}:MyTask", epochs=2))
    assert check_here(configuration) == 78
    answer = json.loads(capfdbinary.readouterr().out)
    assert "evaluate(model, batch) raises IndexError on the first batch of the validation data" in answer["error"]
    assert "logits = model(points)[99]" in answer["traceback"]
