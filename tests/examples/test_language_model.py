"""The language model of the examples: it learns, and what interrupts it changes no bit of what comes out."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.house.tree import ROOT
from tests.recorded import events_of, of, pieces
from tolariad import Tolaria
from tolariad.config import load
from tolariad.core import messages as m
from tolariad.trainer.tasks.task import find_task

EXAMPLE = ROOT / "examples" / "language_model"
TOLARIAD = Path(sys.executable).with_name("tolariad")
STEPS = 10
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
]


class Interrupted(Exception):
    """As ^C twice, or a fault of a hook."""


def shortened(loader, batches, *, shuffle):
    """The example's loader, for the first batches of its data."""
    rows = loader.dataset[: batches * loader.batch_size]
    return DataLoader(rows, loader.batch_size, shuffle=shuffle, collate_fn=loader.collate_fn)


def trained(run, stops=()):
    """Train an epoch of STEPS steps of the example here, interrupted after the steps `stops` and started again."""
    settings = load(EXAMPLE / "config.yaml")
    left = list(stops)

    def hook(model, step):
        if left and step == left[0]:
            left.pop(0)
            raise Interrupted

    for _ in range(len(stops) + 1):
        task = find_task(settings.task).task
        task.on_step_end = hook
        torch.manual_seed(0)
        model = task.model(settings)
        tolaria = Tolaria(settings, run_dir=run)
        try:
            train = shortened(task.train_data(settings), STEPS, shuffle=True)
            validation = shortened(task.val_data(settings), 2, shuffle=False)
            result = tolaria.train(model, train, validation, 1, task=task)
        except Interrupted:
            continue
        assert (result.phase, result.steps, left) == ("completed", STEPS, [])
    return run


def test_the_model_learns_and_two_interruptions_change_no_bit_of_it(tmp_path):
    """Weights that are tied, batches of the collator, and two groups of AdamW."""
    calm = trained(tmp_path / "calm")
    interrupted = trained(tmp_path / "interrupted", stops=(4, 7))
    events = events_of(interrupted)
    assert [one.first_difference for one in of(events, m.RerunFinished)] == [None, None]
    assert pieces(interrupted) == pieces(calm)
    losses = [one.loss for one in of(events_of(calm), m.StepCompleted)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    (validated,) = of(events_of(calm), m.ValidationFinished)
    assert validated.metrics["loss"] < losses[0]


@pytest.mark.torture
def test_a_run_of_the_daemon_that_is_killed_twice_ends_with_the_same_bits(tmp_path):
    """SIGKILL of the trainer, at a step of each of two trainers."""
    tokens = [tmp_path / "one", tmp_path / "two"]
    for token in tokens:
        token.touch()
    runs = {"calm": "", "killed": f"step:17@{tokens[0]},gate:21@{tokens[1]}"}
    for name, failpoint in runs.items():
        done = subprocess.run(
            [TOLARIAD, "run", EXAMPLE / "config.yaml", "--dir", tmp_path / name, "--epochs", "1"],
            env={**os.environ, "TOLARIA_FAILPOINT": failpoint},
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
    assert [one.signal for one in of(events_of(tmp_path / "killed"), m.TrainerDied)] == ["SIGKILL"] * 2
    assert pieces(tmp_path / "killed") == pieces(tmp_path / "calm")
