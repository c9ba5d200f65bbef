"""A real run with a participant of its rollbacks: killed at two places, it ends with the bits of one that never was."""

from __future__ import annotations

import pytest

from tests.daemon.harness import SETS, of_type
from tests.recorded import pieces
from tests.waiting import within
from tolariad.core import messages as m

EPOCHS, STEPS_PER_EPOCH, WAITS_AFTER = 4, 8, 3
TASK = '''
import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class Plan:
    """Weighs the classes; drawn again after each step. It kills the process that puts it back, if a file says so."""

    def __init__(self, folder):
        self.folder = folder
        self.weights = torch.ones(4)
        self.drawn = torch.Generator().manual_seed(9)

    def move(self):
        self.weights = 0.5 + torch.rand(4, generator=self.drawn)

    def state_dict(self):
        return {"weights": self.weights, "drawn": self.drawn.get_state()}

    def load_state_dict(self, state):
        kill_once(self.folder / "kill-load")
        self.weights = state["weights"]
        self.drawn.set_state(state["drawn"])


def kill_once(file):
    if file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Planned:
    def model(self, cfg):
        self.folder = Path(cfg.task_options["folder"])
        return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))

    def participants(self, model):
        self.plan = Plan(self.folder)
        return {"plan": self.plan}

    def train_data(self, cfg):
        inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
        return inputs, inputs[:, :4].argmax(1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1], weight=self.plan.weights)

    def evaluate(self, model, batch):
        return {}

    def on_step_end(self, model, step):
        self.plan.move()
        # A checkpoint is written before training goes on: it is recorded after the next step on any machine.
        for one in threading.enumerate():
            if one.name == "checkpoint-writer":
                one.join()

    def on_epoch_end(self, model, epoch, metrics):
        while epoch == 3 and not (self.folder / "go").exists():
            time.sleep(0.01)
'''


@pytest.fixture
def planned(start, tmp_path):
    """Start a daemon on a folder of its own; the folder also holds the files that say what happens."""
    file = tmp_path / "planned.py"
    file.write_text(TASK)

    def begin(name: str):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        sets = [*SETS, "rng_seed=3", "batch_size=8", "checkpoint_interval_epochs=1", "checkpoint.min_gap_s=0"]
        sets += ["snapshots.every=2", "snapshots.watch_steps=2", f"task_options.folder={folder}"]
        # A participant that is late because the machine is busy would be another test.
        sets += ["rollback.fast_path_timeout_ms=60000", "rollback.full_path_timeout_s=60"]
        asked = {"task": f"{file}:Planned", "epochs": EPOCHS, "sets": sets, "trainer_command": None}
        return folder, start(run_dir=folder / "run", **asked)

    return begin


def test_killed_with_its_daemon_and_while_it_goes_back_a_run_ends_with_the_same_bits(planned, tmp_path):
    """The participant is restored by a re-run's start and by the start that completes the rollback."""
    (tmp_path / "calm").mkdir()
    (tmp_path / "calm" / "go").touch()
    calm_folder, calm = planned("calm")
    folder, killed = planned("killed")
    run_dir = folder / "run"
    killed.until(lambda status: status.get("step") == WAITS_AFTER * STEPS_PER_EPOCH, "the wait")
    killed.kill()
    _, again = planned("killed")
    assert within(60.0, lambda: of_type(run_dir, m.RerunFinished) != [])
    (folder / "kill-load").touch()
    again.call("Rollback", epoch=1)
    (folder / "go").touch()
    assert again.wait() == calm.wait() == 0

    assert not (folder / "kill-load").exists(), "the participant was never put back"
    assert [(one.by_start, one.step) for one in of_type(run_dir, m.RolledBack)] == [(True, STEPS_PER_EPOCH)]
    assert of_type(run_dir, m.RollbackPrepared)[0].participants == ("plan", "training")
    assert [one.first_difference for one in of_type(run_dir, m.RerunFinished)] == [None]
    assert pieces(run_dir) == pieces(calm_folder / "run")
