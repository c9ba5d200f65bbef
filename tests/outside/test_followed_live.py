"""A program that trains is followed to three places at once, while somebody gives orders and everything is killed.

What was written is read by the programs that people look with, and compared with the journal, number by number.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing, suppress
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

from journal import JournalMissing
from tests.outside.readers import read_mlflow, read_tensorboard, read_wandb
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad.core import messages as m

pytestmark = pytest.mark.outside
NEEDED = ("tensorboard", "mlflow", "wandb")
ROOT = Path(__file__).resolve().parents[2]
EPOCHS, STEPS_PER_EPOCH = 5, 20
PROGRAM = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tolariad import Tolaria

tolaria = Tolaria(sys.argv[1])
torch.manual_seed(0)
x = torch.randn(640, 16)
y = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "lr": 0.02}]
run = tolaria.run(model, torch.optim.AdamW(groups), DataLoader(TensorDataset(x, y), 32, shuffle=True))
epochs, steps = [], 0
for epoch in run.epochs(5):
    epochs.append(epoch)
    has_gone_back, may_end = epochs.count(2) == 2, Path(sys.argv[2])
    while has_gone_back and epoch == 3 and not may_end.exists():
        time.sleep(0.05)
    if epoch == 2:
        run.new_stage("labels are smoothed")
    for a, b in run.batches():
        loss = nn.functional.cross_entropy(model(a), b, label_smoothing=0.1 if epoch > 1 else 0.0)
        run.step(loss, **{"train/certainty": loss.neg().exp().item()})
        steps += 1
        # There is time for the orders, however slow the machine.
        time.sleep(0.5 if steps > 30 and not has_gone_back and not may_end.exists() else 0.05)
    with torch.no_grad():
        run.validated(accuracy=(model(x).argmax(1) == y).float().mean().item())
print(run.result.phase)
"""
ORDERED = "from tolariad.cli.tolaria import main; main()"


def started(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, str(folder / "train.py"), str(folder / "blue.yaml"), str(folder / "go on"))
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def ordered(folder, *words):
    command = (sys.executable, "-c", ORDERED, *words)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def of_run(run_dir):
    """Return the ids of the followers of a run: they may outlive its program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            found += [path] if b"tolariad.cli.following" in words and str(run_dir).encode() in words else []
    return found


def kill_all(program):
    """Kill the program and everything below it: its recorder, the followers, and what they have started."""
    for pid in (program.pid, *children_of([program.pid])):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_of(parents):
    found, left = [], list(parents)
    while left:
        parent = left.pop()
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                below = [int(one) for one in task.read_text().split()]
                found += below
                left += below
    return found


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Return the folder of the run: a note, a stage, a rollback by order, a kill of everything, and a second start."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} (extra `oracle`): not installed")
    folder = tmp_path_factory.mktemp("followed")
    follow = [{"to": "tensorboard", "uri": str(folder / "tb")}, {"to": "mlflow", "project": "digits"}]
    follow.append({"to": "wandb", "uri": "offline", "project": "digits"})
    config = {"tolaria": {"checkpoint": {"min_gap_s": 0}, "follow": follow}}
    (folder / "blue.yaml").write_text(json.dumps(config))  # which is YAML too
    (folder / "train.py").write_text(PROGRAM)
    run_dir = folder / "runs" / "blue"
    with started(folder) as program:
        wait_for(lambda: is_at(run_dir, 30), "step 30")
        ordered(folder, "note", "--dir", str(run_dir), "the loss looks odd")
        ordered(folder, "rollback", str(run_dir), "--epoch", "1", "--yes", "--reason", "too noisy")
        wait_for(lambda: of(events_of(run_dir), m.RolledBack) and is_at(run_dir, 30), "the rollback")
        wait_for(lambda: list(run_dir.glob("exports/wandb/offline-run-*")), "the first rows of W&B")
        # MLflow's store cannot be opened any more if it is killed while it makes its tables.
        wait_for(lambda: has_rows(run_dir / "exports" / "mlflow.db"), "the first rows of MLflow")
        kill_all(program)
        program.wait()
    (folder / "go on").touch()
    with started(folder) as program:
        said, _ = program.communicate()
    assert said.splitlines()[-1:] == ["completed"]
    wait_for(lambda: not of_run(run_dir), "the end of the followers")
    for one in follow:
        # The daemon gave them some seconds after its end. On a busy machine that may not have been enough.
        options = [part for name, value in one.items() for part in (f"--{name}", value)]
        ordered(folder, "follow", str(run_dir), "--once", *options)
    return run_dir


def has_rows(store):
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as opened:
        return opened.execute("SELECT count(*) FROM metrics").fetchone()[0] > 0
    return False


def is_at(run_dir, step):
    try:
        made = of(events_of(run_dir), m.StepCompleted)
    except JournalMissing:
        return False
    return made and made[-1].step >= step


def recorded(run_dir):
    """Return step and loss of each branch, as the journal has them."""
    steps = of(events_of(run_dir), m.StepCompleted)
    return {
        branch: [(one.step, one.loss) for one in of_branch] for branch, of_branch in groupby(steps, lambda e: e.branch)
    }


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def test_the_run_was_what_it_was_to_be(followed):
    """Two branches, a death, and all steps."""
    events = events_of(followed)
    steps = recorded(followed)
    assert [step for step, _ in steps[0]][:30] == list(range(1, 31))
    # It goes back to the newest state that it has, which need not be the end of the epoch.
    (fork,) = of(events, m.RolledBack)
    assert fork.step <= STEPS_PER_EPOCH
    assert [step for step, _ in steps[1]] == list(range(fork.step + 1, EPOCHS * STEPS_PER_EPOCH + 1))
    assert len(of(events, m.DaemonStarted)) == 2


def test_tensorboard_has_every_loss_once(followed):
    """By its multiplexer: a run for each branch, the words, and the closing figures."""
    runs = read_tensorboard(followed.parents[1] / "tb")
    (fork,) = of(events_of(followed), m.RolledBack)
    names = ["blue", f"blue/branch-1-after-step-{fork.step}"]

    assert sorted(runs) == names
    for name, steps in zip(names, recorded(followed).values(), strict=True):
        assert runs[name]["train/loss"] == [[step, single(loss)] for step, loss in steps]
    checked(runs[names[0]], runs[names[1]])
    assert "completed" in runs[names[1]]["summary"][-1][1]


def test_mlflow_has_every_loss_once(followed):
    """By its client, from its store: the second run lies below the first; descriptions and tags have the words."""
    runs = read_mlflow(f"sqlite:///{followed}/exports/mlflow.db", "digits")
    for number, steps in recorded(followed).items():
        assert runs[number]["metrics"]["train/loss"] == [list(one) for one in steps]
        assert len(runs[number]["metrics"]["train/certainty"]) == len(steps)
    first, second = runs
    assert [one["status"] for one in runs] == ["KILLED", "FINISHED"]
    assert second["tags"]["mlflow.parentRunId"] == first["id"]
    assert first["params"]["follow"]
    assert "the loss looks odd" in first["tags"]["mlflow.note.content"]
    assert "too noisy" in first["tags"]["mlflow.note.content"]
    assert "labels are smoothed" in first["tags"]["mlflow.note.content"] + second["tags"]["mlflow.note.content"]
    assert (second["tags"]["summary.phase"], second["tags"]["summary.trainer/global_step"]) == ("completed", "100.0")
    assert "val/accuracy" in second["metrics"]
    assert sum(name.startswith("lr/") for name in second["metrics"]) == 2


def test_wandb_has_every_loss_once(followed):
    """By `wandb leet inspect`: rows of each branch's runs, in order, over all starts of the follower."""
    runs = read_wandb(followed / "exports" / "wandb")
    for number, steps in recorded(followed).items():
        rows = [row for one in runs if one["config"]["tolaria_branch"] == number for row in one["rows"]]
        found = [(row["trainer/global_step"], row["train/loss"]) for row in rows if "train/loss" in row]
        assert found == steps
        assert len({row["_step"] for row in rows}) == len(rows)
    told = json.dumps([one["rows"] for one in runs])
    assert all(words in told for words in ("the loss looks odd", "too noisy", "labels are smoothed"))
    assert (runs[-1]["summary"]["phase"], runs[-1]["summary"]["trainer/global_step"]) == ("completed", 100)


def checked(first, second):
    """The words of both branches, by their tags."""
    words = {tag: " ".join(text for _, text in first.get(tag, []) + second.get(tag, [])) for tag in ("notes", "stages")}
    assert "the loss looks odd" in words["notes"]
    assert "labels are smoothed" in words["stages"]
    assert "too noisy" in " ".join(text for tag in ("orders", "rollbacks") for _, text in first.get(tag, []))
