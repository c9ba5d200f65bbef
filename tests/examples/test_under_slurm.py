"""The Slurm example under a real Slurm: warned, stopped, queued again, resumed; cancelled; signalled as a whole."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.daemon.harness import of_type
from tests.examples.slurm import COMMANDS, PATIENCE_S, Slurm, missing
from tests.recorded import events_of
from tolariad.core import messages as m

pytestmark = pytest.mark.outside
CONFIG = "tolaria: {task: digits, epochs: 100000, checkpoint_interval_epochs: 100000}\n"
# The warning comes at the controller's first look at the job's time, which is within half a minute.
WARNED_SOON = ("--time=2", "--signal=USR1@100")


@pytest.fixture
def slurm(tmp_path):
    """A controller and a node."""
    if why := missing():
        pytest.skip(why)
    with Slurm(tmp_path) as running:
        yield running


@pytest.fixture
def begin(slurm, tmp_path):
    """Submit the example, and wait until it has trained. Return the job's id and the run's folder."""
    run = tmp_path / "run"

    def submit(*options: str, config: str = CONFIG) -> str:
        (tmp_path / "my.yaml").write_text(config)
        job = slurm.submit(*options, config=tmp_path / "my.yaml", run=run)
        slurm.until(job, lambda: trained(run))
        return job

    return submit, run


def trained(run) -> list:
    """Return the steps that the journal has."""
    return of_type(run, m.StepCompleted) if (run / "control.sock").exists() else []


def tolaria(run, *words: str) -> subprocess.CompletedProcess:
    """Give an order to the run."""
    command = [COMMANDS / "tolaria", "--dir", run, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_warned_job_stops_with_a_checkpoint_is_queued_again_and_goes_on(slurm, begin):
    """The time limit comes near: USR1 to all processes of the step. The next start makes no step again. Then the run is
    stopped by its operator: the job is done, and what waited for that starts.
    """
    submit, run = begin
    job = submit(*WARNED_SOON)
    after = slurm.call("sbatch", "--parsable", f"--dependency=afterok:{job}", "--wrap=true")
    slurm.until(job, lambda: len(of_type(run, m.DaemonStarted)) > 1)
    first = of_type(run, m.RunStopped)[0]
    slurm.until(job, lambda: of_type(run, m.StepCompleted)[-1].step > first.step + 5)
    assert slurm.show(after, "JobState") == "PENDING"
    assert tolaria(run, "stop", "--reason", "enough").returncode == 0
    slurm.ends(job, "COMPLETED")
    slurm.ends(after, "COMPLETED")

    assert slurm.show(job, "Restarts") != "0"
    assert "tolariad: exit 143, queueing the job again" in slurm.said(job)
    warned, *_ = of_type(run, m.StopRequested)
    saved = [one.step for one in of_type(run, m.CheckpointCommitted)]
    steps = [one.step for one in of_type(run, m.StepCompleted)]
    assert (warned.signal, saved[1]) == ("SIGUSR1", first.step)
    assert steps == list(range(1, len(steps) + 1))
    assert (of_type(run, m.RerunBegun), of_type(run, m.TrainerDied)) == ([], [])


def test_a_signal_to_all_processes_of_a_job_takes_one_checkpoint_and_ends_nobody(slurm, begin):
    """`scancel --signal=USR2`: the daemon hears it, and the trainer, in a session of its own, ignores it."""
    submit, run = begin
    job = submit()
    trainer = json.loads(tolaria(run, "status", "--json").stdout)["trainer"]["pid"]
    for count in (1, 2):
        slurm.call("scancel", "--signal=USR2", job)
        slurm.until(job, lambda: len(ordered(run)) == count)  # noqa: B023 - it is called in this turn of the loop only
    status = json.loads(tolaria(run, "status", "--json").stdout)

    assert (status["phase"], status["trainer"]["pid"]) == ("running", trainer)
    assert [one.actor.reason for one in of_type(run, m.CheckpointRequested)] == ["SIGUSR2", "SIGUSR2"]
    assert of_type(run, m.TrainerDied) == []


def ordered(run) -> list:
    """Return the committed checkpoints that were ordered."""
    events = events_of(run)
    begun = {one.id for one in events if getattr(one, "reason", None) is m.CheckpointReason.ORDERED}
    return [one for one in events if isinstance(one, m.CheckpointCommitted) and one.id in begun]


def test_a_cancelled_job_stops_with_a_checkpoint_and_is_not_queued_again(slurm, begin):
    """SIGTERM to all processes: the run is stopped in order, and is not done for a job that waits for its success."""
    submit, run = begin
    job = submit()
    after = slurm.call("sbatch", "--parsable", f"--dependency=afterok:{job}", "--wrap=true")
    slurm.call("scancel", job)
    slurm.ends(job, "CANCELLED")
    slurm.until(job, lambda: slurm.show(after, "Reason") == "DependencyNeverSatisfied")
    slurm.until(job, lambda: of_type(run, m.RunStopped))

    (stopped,) = of_type(run, m.RunStopped)
    assert [one.step for one in of_type(run, m.CheckpointCommitted)][-1] == stopped.step
    assert "queueing the job again" not in slurm.said(job)
    assert of_type(run, m.TrainerDied) == []


def test_a_job_of_two_ranks_is_preempted_queued_again_and_goes_on(slurm, begin):
    """A job that is more urgent takes the node: the run stops with a checkpoint, and goes on when the node is free.

    One task of Slurm's is the daemon, which starts the ranks. No step is made twice, and no rank is lost.
    """
    submit, run = begin
    job = submit(config=CONFIG.replace("{task:", "{parallel: {ranks: 2}, torch_threads: 1, task:"))
    urgent = slurm.call("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--wrap=sleep 1")
    slurm.ends(urgent, "COMPLETED")
    slurm.until(job, lambda: len(of_type(run, m.DaemonStarted)) > 1)
    first = of_type(run, m.RunStopped)[0]
    slurm.until(job, lambda: of_type(run, m.StepCompleted)[-1].step > first.step + 5)
    assert tolaria(run, "stop", "--reason", "enough").returncode == 0
    slurm.ends(job, "COMPLETED")

    assert slurm.show(job, "Restarts") != "0"
    asked, *_ = of_type(run, m.StopRequested)
    steps = [one.step for one in of_type(run, m.StepCompleted)]
    assert asked.signal == "SIGTERM"
    assert [one.step for one in of_type(run, m.CheckpointCommitted) if one.step == first.step]
    assert steps == list(range(1, len(steps) + 1))
    assert (of_type(run, m.RerunBegun), of_type(run, m.TrainerDied)) == ([], [])
