"""P6: the fast rollback needs nothing optional. Its time is taken from the journal, by the recorder's clock."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.daemon.harness import SETS, DaemonProcess, of_type
from tests.recorded import events_of
from tests.waiting import wait_for
from tolariad.core import messages as m

# Four times the budget of half a second, and a third of the hang: a rollback that waited for the loop is seen.
LIMIT_S = 2.0
# Only the first checkpoint: one that is taken just before a death would be newer than every snapshot.
CADENCE = ["snapshots.every={seconds: 0.05}", "snapshots.watch_steps=5"]
SETS_OF_BOTH = [*SETS, *CADENCE, "checkpoint_interval_epochs=1000000"]
# The trainer goes on while a test waits: each step sleeps, so that a core is left for the others.
UNHURRIED = """
import time
from tolariad.trainer.tasks.digits import Digits


class Unhurried(Digits):
    def on_step_end(self, model, step):
        time.sleep(0.01)
"""


@pytest.fixture
def task(tmp_path) -> str:
    """Digits, a hundred steps a second at most."""
    file = tmp_path / "unhurried.py"
    file.write_text(UNHURRIED)
    return f"{file}:Unhurried"


def has_snapshots(daemon):
    """Wait until there is a snapshot to go back to."""
    daemon.until(lambda status: (status.get("step") or 0) >= 60, "step 60")
    wait_for(lambda: of_type(daemon.run_dir, m.SnapshotPromoted))


@pytest.fixture
def broken(start, task) -> DaemonProcess:
    """A daemon with a real trainer; a file in its run folder selects what breaks."""
    module = "tests.daemon.start_broken"
    daemon = start(module=module, task=task, epochs=20_000, sets=SETS_OF_BOTH, trainer_command=None)
    has_snapshots(daemon)
    return daemon


def test_with_bus_metrics_and_logs_broken_a_fast_rollback_keeps_its_budget_and_a_dead_trainer_goes_on(broken, run_dir):
    """They raise, hang, and are full, one after the other. Then the trainer is killed; the next one continues from
    memory.
    """
    for number, how in enumerate(("raising", "hanging", "full"), 1):
        (run_dir / "broken").write_text(how)
        broken.call("Rollback", tier="fast", reason=how)
        wait_for(lambda n=number: len(of_type(run_dir, m.RolledBack)) == n, f"rollback {number}")
        if how == "hanging":
            wait_for(lambda: not (run_dir / "broken").exists(), "the hang of the loop")
        (run_dir / "broken").unlink(missing_ok=True)
        at = broken.until(lambda status: status["phase"] == "running", "training")["step"]
        broken.until(lambda status, at=at: status["step"] > at + 30, "thirty steps")
    pid = int((run_dir / "trainer.lock").read_text())
    starts = len(of_type(run_dir, m.TrainingStarted))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(of_type(run_dir, m.TrainingStarted)) > starts)
    again = broken.status()["step"]
    broken.until(lambda status: status["step"] > again + 5, "further steps")
    broken.call("Stop", mode="now")
    assert broken.wait() == 0

    begun, done = of_type(run_dir, m.RollbackBegun), of_type(run_dir, m.RolledBack)
    assert [e.tier for e in begun] == [m.Tier.FAST] * 3
    assert all(e.checkpoint == one.checkpoint for e, one in zip(begun, done, strict=True)), "the full tier took over"
    for one, other in zip(begun, done, strict=True):
        assert (other.mono - one.mono) / 1e9 < LIMIT_S, f"{one.why}: {(other.mono - one.mono) / 1e9:.3f} s"
    # Three times gone back, one trainer dead: nothing else happened to the run.
    assert len(of_type(run_dir, m.TrainerDied)) == 1
    assert of_type(run_dir, m.TrainingStarted)[-1].checkpoint in {e.id for e in of_type(run_dir, m.SnapshotTaken)}
    steps = [(e.branch, e.step) for e in events_of(run_dir) if isinstance(e, m.StepCompleted)]
    assert len(steps) == len(set(steps))


def test_snapshots_that_differ_are_found_by_the_daemon_before_the_next_trainer_is_built(start, run_dir, task):
    """A bit of every slot is flipped while the trainer is held; it is killed, and the run continues from disk on one
    branch.
    """
    daemon = start(task=task, epochs=20_000, sets=SETS_OF_BOTH, trainer_command=None)
    has_snapshots(daemon)
    pid = int((run_dir / "trainer.lock").read_text())
    os.kill(pid, signal.SIGSTOP)
    ring = of_type(run_dir, m.SnapshotRingOpened)[0]
    files = [one for one in Path(f"/proc/{daemon.pid}/fd").iterdir() if "tolaria-snapshots" in str(one.readlink())]
    with files[0].open("r+b") as memory:
        for slot in range(ring.slots):
            memory.seek(slot * ring.slot_bytes + 4096)
            bit = memory.read(1)[0] ^ 1
            memory.seek(slot * ring.slot_bytes + 4096)
            memory.write(bytes([bit]))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(of_type(run_dir, m.TrainingStarted)) == 2)
    again = daemon.status()["step"]
    daemon.until(lambda status: status["step"] > again + 5, "further steps")
    daemon.call("Stop", mode="now")
    assert daemon.wait() == 0

    found = events_of(run_dir)
    died = next(at for at, one in enumerate(found) if isinstance(one, m.TrainerDied))
    built = next(at for at, one in enumerate(found) if isinstance(one, m.ExecutionContextRecorded) and at > died)
    rejected = [one for one in found[died:built] if isinstance(one, m.SnapshotRejected)]
    assert rejected, "the daemon found nothing"
    assert all("recorded digest" in one.why for one in rejected)
    assert [e for e in found[built:] if isinstance(e, m.SnapshotRejected)] == []
    assert of_type(run_dir, m.TrainingStarted)[-1].checkpoint.startswith("c")
    assert [e.first_difference for e in of_type(run_dir, m.RerunFinished)] == [None]
