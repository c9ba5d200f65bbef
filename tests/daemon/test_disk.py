"""When the disk is full, the run pauses, says so, and resumes by itself when there is space. Nothing is lost."""

from __future__ import annotations

import os
import subprocess

import pytest

from journal import Verdict, verify
from tests.daemon.harness import of_type
from tolariad.core import messages as m

SEGMENT = 65_536
SETS = [f"journal.segment_bytes={SEGMENT}"]


@pytest.fixture
def small_disk(tmp_path):
    """Mount two megabytes of memory as a disk."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder) -> None:
    """Use every free byte."""
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        for size in (65_536, 4096, 512, 1):
            try:
                while True:
                    ballast.write(bytes(size))
            except OSError:
                continue


def test_a_full_disk_pauses_the_run_until_there_is_space(start, small_disk):
    """The disk fills during training: the run pauses and says so. After space is freed it completes, with every step
    once.
    """
    run_dir = small_disk / "run"
    daemon = start(run_dir=run_dir, environ={"FAKE_TRAINER": "crawl@4"}, sets=SETS, task="digits", epochs=3)
    daemon.until(lambda status: status["step"] >= 4)
    fill(small_disk)
    status = daemon.until(lambda status: status["phase"] == "paused", "the pause")
    assert daemon.status()["step"] == status["step"]
    (small_disk / "ballast").unlink()
    daemon.until(lambda status: status["phase"] == "running", "that it goes on")
    daemon.call("Note", text="there is space")
    assert daemon.wait() == 0, daemon.stderr

    (low,), (recovered,) = of_type(run_dir, m.DiskLow), of_type(run_dir, m.DiskRecovered)
    assert low.free < low.floor <= recovered.free
    assert low.floor >= 3 * SEGMENT
    assert len(of_type(run_dir, m.RunPaused)) == len(of_type(run_dir, m.RunResumed)) == 1
    assert of_type(run_dir, m.RunFrozen) == []
    steps = [one.step for one in of_type(run_dir, m.StepCompleted)]
    assert steps == list(range(1, len(steps) + 1))
    assert of_type(run_dir, m.RunCompleted)
    assert verify(run_dir / "journal").verdict is Verdict.CLEAN


def test_a_disk_too_small_at_the_start_pauses_the_run_until_there_is_space(start, small_disk):
    """Not even one segment fits: the daemon answers with the reason and starts no trainer; with a larger disk it
    continues.
    """
    run_dir = small_disk / "run"
    daemon = start(run_dir=run_dir, sets=["journal.segment_bytes=4000000"], task="digits", epochs=3)
    status = daemon.until(lambda status: status["phase"] == "paused", "the pause")
    assert status["step"] == 0
    assert of_type(run_dir, m.TrainerStarted) == []
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert daemon.wait() == 0, daemon.stderr

    (low,), (recovered,) = of_type(run_dir, m.DiskLow), of_type(run_dir, m.DiskRecovered)
    assert low.free < 2_000_000 < low.floor <= recovered.free
    assert of_type(run_dir, m.RunCompleted)
    assert verify(run_dir / "journal").verdict is Verdict.CLEAN


def test_a_small_run_runs_on_a_small_disk(start, small_disk):
    """With the settings as they come, and 16 MB: three segments of the greatest length would be 300 MB."""
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    run_dir = small_disk / "run"
    daemon = start(run_dir=run_dir, sets=[], task="digits", epochs=3)
    assert daemon.wait() == 0, daemon.stderr

    assert of_type(run_dir, m.DiskLow) == []
    assert of_type(run_dir, m.RunCompleted)
