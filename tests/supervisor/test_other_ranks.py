"""Of several ranks the one whose end led to the others is named, in whatever order their ends are noted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from tests.waiting import PATIENCE_S
from tolariad.core.calc.run.exits import EXIT_TRY_AGAIN
from tolariad.supervisor import other_ranks
from tolariad.supervisor.other_ranks import Members, cause_of
from tolariad.supervisor.process import ChildProcess, Exit
from tolariad.supervisor.started import StartedRank, TrainerSetup

KILLED, LOST, RAISED, TOLD = Exit(signal_number=9), Exit(code=EXIT_TRY_AGAIN), Exit(code=1), Exit(code=0)


@pytest.mark.parametrize(
    ("exits", "order", "killed", "first"),
    [
        ((LOST, KILLED, LOST), (0, 1, 2), (), 1),
        ((LOST, KILLED, KILLED), (0, 2, 1), (1,), 2),
        ((RAISED, RAISED, KILLED), (1, 0, 2), (2,), 1),
        ((RAISED, LOST, KILLED), (0, 1, 2), (), 2),
        ((KILLED, LOST, LOST), (1, 2, 0), (), 0),
        ((TOLD, KILLED, TOLD), (0, 2, 1), (1,), 0),
        ((LOST, TOLD, LOST), (1, 0, 2), (), 0),
        ((KILLED, KILLED, KILLED), (2, 1, 0), (0, 1, 2), 0),
    ],
    ids=["signal", "ours", "raised", "both", "leader", "told", "left", "all ours"],
)
def test_the_first_that_ended_by_itself_is_the_cause(exits, order, killed, first):
    """A signal comes before an exception, and both before the end of a rank that has lost another one."""
    assert cause_of(dict(enumerate(exits)), list(order), set(killed)) == first


async def members_of(folder, *programs):
    """Start these programs as ranks. Return them with the task that ends once all have ended."""
    setup = TrainerSetup(run_dir=folder, command=(), environment=os.environ)
    reader, writer = os.pipe()
    leader = ChildProcess.spawn((sys.executable, "-c", programs[0]), os.environ, writer, ())
    os.close(writer)
    others = tuple(
        StartedRank(rank, setup, (sys.executable, "-c", program), ()) for rank, program in enumerate(programs[1:], 1)
    )
    members, gone, ends = Members(leader, others, ()), asyncio.Event(), []

    def end():
        ends.append(True)
        members.kill()

    members.watch(end, gone.set)
    return members, leader, gone, ends, reader


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def test_the_end_of_one_ends_all_and_its_output_is_told(tmp_path):
    """Rank 0 and rank 2 would run for an hour."""
    long = "import time; time.sleep(3600)"

    async def go():
        dies = "import os; print('of rank 1', flush=True); os.kill(os.getpid(), 9)"
        members, leader, gone, ends, reader = await members_of(tmp_path, long, dies, long)
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
        os.close(reader)
        return members.reap(leader.reap(), "of rank 0"), ends

    cause, ends = asyncio.run(go())

    assert (cause.rank, cause.exit, cause.output, cause.was_killed) == (1, KILLED, "of rank 1\n", False)
    assert ends == [True]


def test_a_rank_that_a_signal_has_stopped_is_found(tmp_path, monkeypatch):
    """By the state that the system shows, after the time that it may take."""
    monkeypatch.setattr(other_ranks, "STOPPED_S", 5.0)
    long = "import time; time.sleep(3600)"

    async def go():
        members, leader, gone, _, reader = await members_of(tmp_path, long, long)
        stopped = members._children[1].pid
        stop(stopped)
        found = [members.stopped(now) for now in (100.0, 104.0, 105.0)]
        members.kill()
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
        os.close(reader)
        members.reap(leader.reap(), "")
        return found

    first, second, (rank, silence) = asyncio.run(go())

    assert (first, second) == (None, None)
    assert (rank, silence.activity, silence.silent_s) == (1, "stopped", 5.0)
