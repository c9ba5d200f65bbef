"""A step's loss may be read while the next step computes, as on a GPU: only the report comes later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.calc.settings.model import Detect, Settings
from tolariad.trainer import build
from tolariad.trainer.health.monitor import Monitor
from tolariad.trainer.orders.gate import Gate
from tolariad.trainer.step import stepper
from tolariad.trainer.step.measured import reads_late

TASK = f"{Path(__file__).with_name('tasks')}/augmenting.py:Augmenting"


@pytest.fixture
def late(monkeypatch):
    """Also here, although the numbers are on the host at once."""
    monkeypatch.setattr(build, "reads_late", lambda settings, device: True)


def test_numbers_are_read_late_where_nothing_has_to_be_known_before_the_update():
    """This is so on CUDA, but not for fp16, whose overflow must be known, nor if the detector needs the numbers
    earlier.
    """
    cuda, cpu = torch.device("cuda:0"), torch.device("cpu")
    assert reads_late(Settings(), cuda)
    assert reads_late(Settings(precision="bf16"), cuda)
    assert not reads_late(Settings(), cpu)
    assert not reads_late(Settings(precision="fp16"), cuda)
    assert not reads_late(Settings(detect=Detect(sync=True)), cuda)


def test_a_step_is_reported_after_the_next_backward_pass_and_before_the_next_update(
    daemon_in, configured, monkeypatch, late
):
    """The host runs ahead of the device by less than a step; at an epoch's end everything is reported."""
    seen = []

    def noting(name, function):
        def call(*arguments, **named):
            # `report_step` is a method: before its values comes the gate.
            what = arguments[1][0] if name == "report" else arguments[-1]
            step = what if isinstance(what, int) else ""
            seen.append(f"{name} {step}".strip())
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(stepper, "forward_backward", noting("backward", stepper.forward_backward))
    monkeypatch.setattr(stepper, "update", noting("update", stepper.update))
    monkeypatch.setattr(Gate, "report_step", noting("report", Gate.report_step))
    monkeypatch.setattr(Gate, "wait", noting("gate", Gate.wait))
    daemon = daemon_in("run", 1)
    daemon.train_here(configured(TASK, epochs=1, batch_size=26))
    names = [name for name in seen if not name.startswith(("gate", "update"))]
    assert names == ["backward 1", "backward 2", "report 1", "report 2"]
    assert [name.split()[0] for name in seen] == [
        "backward", "gate", "update", "backward", "report", "gate", "update", "report"
    ]  # fmt: skip
    assert list(daemon.steps) == [1, 2]


def test_interrupted_runs_end_with_the_bits_of_one_that_reads_at_once(daemon_in, configured, monkeypatch):
    """Before any order at a boundary is obeyed, its step is reported: a checkpoint, an end, an exit."""
    configuration = configured(TASK, epochs=2, batch_size=8)
    at_once = daemon_in("at-once", 2)
    at_once.train_here(configuration)
    monkeypatch.setattr(build, "reads_late", lambda settings, device: True)
    broken = daemon_in("late", 2)
    for checkpoint_at, exit_at in ((2, 5), (None, 9), (11, 12)):
        broken.checkpoint_after_step, broken.exit_after_step = checkpoint_at, exit_at
        broken.train_here(configuration)
    broken.train_here(configuration)
    assert broken.files("end") == at_once.files("end")
    assert broken.steps == at_once.steps
    assert broken.reruns()
    last = 0
    for report in broken.reports:
        last = report.step if isinstance(report, m.StepReport) else last
        if isinstance(report, m.CheckpointWrittenReport):
            assert report.step <= last, "a checkpoint was ahead of what was reported"


def test_what_is_found_late_is_durable_before_the_next_update(daemon_in, configured, monkeypatch, late):
    """Otherwise more updates would be made on bad weights, the more the slower the recorder is."""
    verdict = Verdict(Finding.NON_FINITE, Signal.LOSS, float("nan"), 1.0, 2.0)
    verdicts = iter([verdict])
    seen = []

    def noting(name, function):
        def call(*arguments, **named):
            seen.append(type(arguments[-1]).__name__ if name == "report" else name)
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(Monitor, "judge", lambda self, loss, norm, rate: next(verdicts, None))
    for name in ("report_step", "report", "wait"):
        monkeypatch.setattr(Gate, name, noting(name, getattr(Gate, name)))
    monkeypatch.setattr(stepper, "update", noting("update", stepper.update))
    daemon_in("run", 1).train_here(configured(TASK, epochs=1, batch_size=26))

    assert seen == [
        *("wait", "update", "report_step", "InstabilityReport"),
        *("wait", "update", "report_step"),
    ]  # fmt: skip


def test_metrics_and_the_context_of_a_hook_are_those_of_their_step(daemon_in, configured, monkeypatch, late, tmp_path):
    """The row of a step waits with its loss, while the next step collects its own; a hook may ask before."""
    (tmp_path / "task.py").write_text(METRIC_TASK)
    daemon = daemon_in("run", 1)
    daemon.train_here(
        configured(f"{tmp_path}/task.py:Counts", epochs=1, batch_size=8, learning_rate={"warmup_epochs": 0})
    )

    rows = [report.metrics for report in daemon.steps.values()]
    assert rows == [(float(step), 10.0 * step) for step in range(1, len(rows) + 1)]
    assert len(rows) == 4


METRIC_TASK = """
import torch
from torch import nn


class Counts:
    calls = 0

    def model(self, cfg):
        return nn.Linear(4, 2)

    def train_data(self, cfg):
        return (torch.ones(32, 4),)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        self.calls += 1
        return {"loss": model(batch[0]).square().mean(), "calls": torch.tensor(self.calls)}

    def evaluate(self, model, batch):
        return {}

    def on_step_end(self, model, step, context):
        context.log("tens", context.metrics["calls"] * 10)
        assert context.loss > 0
"""
