"""What followers write is read back by the programs that people look with: a rollback, and a kill in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.core.simulate import World, until, until_found
from tests.followers.recording import went_back, write_journal
from tests.outside.readers import read_mlflow, read_tensorboard, read_wandb
from tests.waiting import wait_for
from tolariad.core import messages as m

pytestmark = pytest.mark.outside
TOLARIA = "from tolariad.cli.tolaria import main; main()"
FORMER, LATER = list(range(1, 11)), list(range(5, 13))


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
    copied(events, run_dir, to, *options)


def copied(events, run_dir, to, *options):
    """Copy a journal of these events, which takes the place of an earlier one, to its end."""
    if (run_dir / "journal").exists():
        (run_dir / "journal").rename(run_dir / f"before-{len(events)}")
    write_journal(events, run_dir / "journal")
    # Not as the daemon starts it: such a one gives up a minute after the daemon's end.
    command = (sys.executable, "-c", TOLARIA, "follow", str(run_dir), f"--to={to}", "--once", *options)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def store_of(run_dir):
    return f"sqlite:///{run_dir / 'exports' / 'mlflow.db'}"


def steps_in(numbers):
    return [step for step, *_ in numbers["train/loss"]]


def needs(name, extra):
    if find_spec(name) is None:
        pytest.skip(f"{name} (extra `{extra}`) is not installed")


def test_tensorboard_shows_each_branch_as_a_run_of_its_own(run_dir):
    """Its own multiplexer, which the server uses, finds two runs with all steps; the note is a text of the first."""
    needs("tensorboard", "oracle")
    follow(run_dir, "tensorboard")
    runs = read_tensorboard(run_dir / "exports" / "tensorboard")

    assert {name: steps_in(run) for name, run in runs.items()} == {"sim": FORMER, "sim/branch-1-after-step-4": LATER}
    ((_, note),) = runs["sim"]["notes"]
    assert "the loss | looks odd" in note


def test_mlflow_has_a_run_for_each_branch_and_each_step_once(run_dir):
    """Its real store, in a file of SQLite: the second run lies below the first, and its last step is its value."""
    needs("mlflow", "oracle")
    follow(run_dir, "mlflow")
    first, second = read_mlflow(store_of(run_dir), "tolariad")

    assert [one["name"] for one in (first, second)] == ["sim", "sim branch-1-after-step-4"]
    assert [steps_in(one["metrics"]) for one in (first, second)] == [FORMER, LATER]
    assert "the loss | looks odd" in first["tags"]["mlflow.note.content"]
    assert second["tags"]["mlflow.parentRunId"] == first["id"]
    assert [one["status"] for one in (first, second)] == ["KILLED", "FINISHED"]


def test_mlflow_shows_which_run_is_the_one_that_trains(run_dir):
    """Two rollbacks to one step, a stop, and a start that goes on. A run begins and ends when the training did."""
    needs("mlflow", "oracle")
    world = until(World(0), 10)
    for step in (7, 7):
        world.command(m.Rollback(epoch=1, reason="too noisy"))
        until(until_found(world, m.RolledBack), step)
    world.command(m.Stop())
    world.run()
    stopped = list(world.events)
    world.restart_daemon(m.StartMode.EXPLICIT)
    until(world, 9)
    found = []
    for events in (stopped, world.events):
        copied(events, run_dir, "mlflow")
        found.append(read_mlflow(store_of(run_dir), "tolariad"))

    assert [[one["status"] for one in runs] for runs in found] == [["KILLED"] * 3, ["KILLED", "KILLED", "RUNNING"]]
    begun = [event.wall // 1_000_000 for event in stopped if isinstance(event, (m.RunStarted, m.RolledBack))]
    assert [one["start"] for one in found[-1]] == begun
    assert [one["end"] for one in found[0]] == [*begun[1:], stopped[-1].wall // 1_000_000]


def test_wandb_has_a_run_for_each_branch_and_each_step_once(run_dir):
    """The files of its offline runs, by its own reader."""
    needs("wandb", "oracle")
    follow(run_dir, "wandb", "--uri=offline")
    runs = read_wandb(run_dir / "exports" / "wandb")
    steps, notes = {}, []
    for run in runs:
        losses = [row["trainer/global_step"] for row in run["rows"] if "train/loss" in row]
        steps[run["name"]] = steps.get(run["name"], []) + losses
        notes += [row["notes"] for row in run["rows"] if "notes" in row]

    assert steps == {"sim": FORMER, "sim branch-1-after-step-4": LATER}
    assert len(notes) == 1
    assert {run["group"] for run in runs} == {"sim"}
