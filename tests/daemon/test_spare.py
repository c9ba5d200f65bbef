"""A real trainer is followed by a spare that has built the task: the run goes on as if it had not died."""

from __future__ import annotations

import os
import signal

import pytest

from tests.daemon.harness import of_type
from tests.waiting import wait_for
from tolariad.core import messages as m


def changes(run_dir, kind: m.Spare) -> list[m.SpareChanged]:
    return [one for one in of_type(run_dir, m.SpareChanged) if one.spare is kind]


@pytest.mark.torture
def test_a_spare_that_has_built_the_task_goes_on_bit_for_bit(start, run_dir):
    """It is the process that waited, its memory is shown in the status, and what it runs again equals the journal."""
    daemon = start(
        module="tests.daemon.start_soon_spare",
        task="tests.daemon.paced_task:PacedTask",
        epochs=1000,
        trainer_command=None,
        shells=0,
        sets=["journal.segment_bytes=1000000", "trainer.spare=built", "checkpoint.interval_steps=1000000"],
    )
    waits = daemon.until(lambda status: status["trainer"] and status["trainer"].get("spare_bytes"), "a spare")
    assert waits["trainer"]["spare_bytes"] > 100 << 20
    (ready,) = changes(run_dir, m.Spare.READY)

    os.kill(waits["trainer"]["pid"], signal.SIGKILL)
    wait_for(lambda: of_type(run_dir, m.RerunFinished), "the re-run")
    daemon.kill()
    assert [one.pid for one in changes(run_dir, m.Spare.USED)] == [ready.pid]
    assert [one.pid for one in of_type(run_dir, m.TrainerStarted)][1] == ready.pid
    (rerun,) = of_type(run_dir, m.RerunFinished)
    assert rerun.compared > 0
    assert rerun.first_difference is None


@pytest.mark.parametrize(
    "sums", [("parallel.exact=true", "parallel.leaves=2"), pytest.param((), marks=pytest.mark.torture)]
)
def test_ranks_that_have_built_the_task_go_on_bit_for_bit(start, run_dir, sums):
    """Each of them waited, with a task of its own; their memory is counted together."""
    daemon = start(
        module="tests.daemon.start_soon_spare",
        task="tests.daemon.paced_task:PacedTask",
        epochs=1000,
        trainer_command=None,
        shells=0,
        sets=[
            *("journal.segment_bytes=1000000", "trainer.spare=built", "checkpoint.interval_steps=1000000"),
            *("parallel.ranks=2", "torch_threads=1", *sums),
        ],
    )
    waits = daemon.until(lambda status: status["trainer"] and status["trainer"].get("spare_bytes"), "the spares")
    assert waits["trainer"]["spare_bytes"] > 200 << 20
    (ready,) = changes(run_dir, m.Spare.READY)

    os.kill(waits["trainer"]["pid"], signal.SIGKILL)
    wait_for(lambda: of_type(run_dir, m.RerunFinished), "the re-run")
    daemon.kill()
    assert [one.pid for one in changes(run_dir, m.Spare.USED)] == [ready.pid]
    assert [one.pid for one in of_type(run_dir, m.TrainerStarted)][1] == ready.pid
    (rerun,) = of_type(run_dir, m.RerunFinished)
    assert rerun.compared > 0
    assert rerun.first_difference is None
