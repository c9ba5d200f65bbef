"""What followers write is read back by the programs that people look with: a rollback, and a kill in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.followers.recording import went_back, write_journal
from tests.waiting import wait_for

pytestmark = pytest.mark.outside
FORMER, LATER = list(range(1, 11)), list(range(5, 13))
TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
found = EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0}).AddRunsFromDirectory(sys.argv[1]).Reload()
steps = {run: [one.step for one in found.Tensors(run, "train/loss")] for run in sorted(found.Runs())}
notes = found.Tensors(sorted(found.Runs())[0], "notes")
print(json.dumps([steps, [one.tensor_proto.string_val[0].decode() for one in notes]]))
"""
MLFLOW = """
import json, sys, mlflow
client = mlflow.MlflowClient(sys.argv[1])
(experiment,) = [one for one in client.search_experiments() if one.name == "tolariad"]
runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda one: one.data.tags["tolaria.branch"])
steps = {one.info.run_name: [row.step for row in client.get_metric_history(one.info.run_id, "train/loss")]
         for one in runs}
parent = runs[1].data.tags["mlflow.parentRunId"] == runs[0].info.run_id
print(json.dumps([steps, runs[0].data.tags["mlflow.note.content"], parent, [one.info.status for one in runs]]))
"""
WANDB = """
import glob, json, sys
from tolariad.followers.wandb import _records
from wandb.proto import wandb_internal_pb2 as pb
steps, notes = {}, []
for path in sorted(glob.glob(sys.argv[1] + "/offline-run-*/*.wandb")):
    for content in _records(open(path, "rb").read()):
        record = pb.Record.FromString(content)
        if record.run.run_id:
            name = record.run.display_name
        row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
        if "train/loss" in row:
            steps.setdefault(name, []).append(int(row["trainer/global_step"]))
        notes += [row["notes"]] if "notes" in row else []
print(json.dumps([steps, notes]))
"""


@pytest.fixture
def run_dir(tmp_path):
    """A run that went back, of which a follower has copied a part before it was killed."""
    return tmp_path / "run"


def follow(run_dir, to, *options):
    """Follow the first half until there is output, kill the follower, then follow the whole run."""
    events = went_back().events
    half = write_journal(events[: len(events) * 2 // 3], run_dir / "journal")
    command = (sys.executable, "-m", "tolariad.cli.following", f"--to={to}", "--dir", str(run_dir), *options)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "writing to" in wait_for(process.stderr.readline, "a follower's first words") or to == "mlflow"
        if to == "tensorboard":
            wait_for(lambda: list(run_dir.rglob("tolaria-position.json")), "a position")
        process.send_signal(signal.SIGKILL)
    half.rename(run_dir / "former")
    write_journal(events, run_dir / "journal")
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def read_back(code, place):
    ended = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def needs(name, extra):
    if find_spec(name) is None:
        pytest.skip(f"{name} (extra `{extra}`) is not installed")


def test_tensorboard_shows_each_branch_as_a_run_of_its_own(run_dir):
    """Its own multiplexer, which the server uses, finds two runs with all steps; the note is a text of the first."""
    needs("tensorboard", "oracle")
    follow(run_dir, "tensorboard")
    steps, notes = read_back(TENSORBOARD, run_dir / "exports" / "tensorboard")

    assert steps == {"sim": FORMER, "sim/branch-1-after-step-4": LATER}
    assert [note for note in notes if "the loss | looks odd" in note] == notes != []


def test_mlflow_has_a_run_for_each_branch_and_each_step_once(run_dir):
    """Its real store, in a file of SQLite: the second run lies below the first, and its last step is its value."""
    needs("mlflow", "oracle")
    follow(run_dir, "mlflow")
    steps, note, is_parent, status = read_back(MLFLOW, f"sqlite:///{run_dir / 'exports' / 'mlflow.db'}")

    assert steps == {"sim": FORMER, "sim branch-1-after-step-4": LATER}
    assert "the loss | looks odd" in note
    assert is_parent
    assert status == ["KILLED", "FINISHED"]


def test_wandb_has_a_run_for_each_branch_and_each_step_once(run_dir):
    """Its files of an offline run, read by their format."""
    needs("wandb", "oracle")
    follow(run_dir, "wandb", "--uri=offline")
    steps, notes = read_back(WANDB, run_dir / "exports" / "wandb")

    assert steps == {"sim": FORMER, "sim branch-1-after-step-4": LATER}
    assert len(notes) == 1
