"""The scheduling that a real daemon gets on this machine, and that its trainers inherit none of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.daemon.harness import of_type
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_TERMINATED

_FIFO_WORKS = subprocess.run(["chrt", "-f", "1", "true"], capture_output=True, check=False).returncode == 0


def classes(pid):
    """Return the scheduling class of every thread of a process."""
    return {
        os.sched_getscheduler(int(one.name)) & ~os.SCHED_RESET_ON_FORK for one in Path(f"/proc/{pid}/task").iterdir()
    }


def incarnation(status):
    """Return the classes of the live trainer's threads."""
    return status["trainer"] and status["trainer"]["incarnation"]


def test_every_trainer_is_ordinary_and_what_was_given_is_journaled(start, run_dir):
    """A trainer and its successor run on their cores, without the recorder's class."""
    daemon = start(environ={"FAKE_TRAINER": "kill@4", "FAKE_STEP_S": "0.05"}, task="digits", epochs=1000)
    died = daemon.until(lambda status: incarnation(status) == 2 and status["step"] > 6)
    assert classes(died["trainer"]["pid"]) == {os.SCHED_OTHER}
    assert daemon.until(lambda status: status["step"] > 8)
    daemon.process.terminate()
    assert daemon.wait() == EXIT_TERMINATED, daemon.stderr

    first, second = of_type(run_dir, m.SchedulingRecorded)
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert first.cores == second.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert len(of_type(run_dir, m.TrainerDied)) == 1
    if len(first.cores) > 1:
        for one in (first, second):
            assert one.polls
            assert set(one.daemon_cores).isdisjoint(one.trainer_cores)
            assert one.scheduler == "fifo" if _FIFO_WORKS else one.refused.startswith("SCHED_FIFO: ")


@pytest.mark.skipif(not _FIFO_WORKS, reason="this user may not ask for SCHED_FIFO")
def test_a_trainer_of_a_daemon_in_a_real_time_class_leaves_it(start, run_dir):
    """A unit with CPUSchedulingPolicy=fifo would otherwise give all of torch's threads real-time priority."""
    daemon = start(wrapper=("chrt", "-f", "1"), environ={"FAKE_STEP_S": "0.05"}, task="digits", epochs=1000)
    status = daemon.until(lambda status: status["step"] > 2)

    assert classes(status["trainer"]["pid"]) == {os.SCHED_OTHER}
    daemon.process.terminate()
    assert daemon.wait() == EXIT_TERMINATED, daemon.stderr
