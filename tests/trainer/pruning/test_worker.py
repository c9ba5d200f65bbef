"""The real process of an analysis: it answers as `analyse` does, stands back, and goes with its daemon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.trainer.pruning.test_analysing import FREE, Trained
from tests.trainer.tasks.analysed import FILE
from tests.waiting import becomes_true, within
from tolariad.core import messages as m
from tolariad.core.calc.settings.rules import read_resolved
from tolariad.supervisor.analyst import Analyst, AnalystSetup

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


@pytest.fixture
def trained(tmp_path):
    made = Trained(tmp_path, f"{FILE}:Lossy", prune=FREE)
    (tmp_path / "config.resolved.json").write_bytes(made.config)
    return made


async def replied(trained, **environment):
    """Analyse the run's last checkpoint, and return the only reply."""
    request, replies = trained.request, []
    setup = AnalystSetup(
        run_dir=trained.run,
        config=trained.run / "config.resolved.json",
        # The cores of these tests are busy: an idle process might wait for minutes.
        prune=replace(read_resolved(trained.config).prune, analysis_priority="normal"),
        environment={**os.environ, **environment},
    )
    analyst = Analyst(setup, replies.append)
    analyst.obey(m.AnalyzeCheckpoint(request=request, limit_s=300.0))
    assert await becomes_true(lambda: replies, 120.0)
    await analyst.close()
    assert await becomes_true(lambda: not analyses_of(os.getpid()))
    (reply,) = replies
    return reply


async def test_the_process_answers_as_the_analysis(trained):
    """The same units, plan and numbers; a file with the size that it says; no process is left."""
    reply = await replied(trained)

    assert reply.why == ""
    here = trained.analyse()
    assert (reply.found.units, reply.found.plan, reply.found.sha256) == (here.units, here.plan, here.masks_sha256)
    assert (reply.found.correlation, reply.found.samples) == (here.correlation, here.samples)
    assert (trained.run / reply.found.importance).stat().st_size == reply.found.importance_size


@pytest.mark.torture
@pytest.mark.parametrize("passed", [1, 2, 3, 4])
async def test_a_process_that_is_killed_at_any_stage_leaves_nothing(trained, passed):
    """After the build, the importance, the validation, and after its file: a reason, and no file without an event."""
    files = trained.daemon.files(trained.request.checkpoint)
    reply = await replied(trained, TOLARIA_FAILPOINT=f"analysis:{passed}")

    assert (reply.found, reply.why) == (None, "Its process was ended by SIGKILL.")
    assert not list(trained.run.glob("importance/*.safetensors"))
    assert trained.daemon.files(trained.request.checkpoint) == files


@pytest.fixture
def waiting(tmp_path):
    """Start a process that waits for its request, with these further arguments."""
    started = []

    def start(*more):
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tolariad.trainer", "--analyse", "--run", str(tmp_path), "--config-json", "x"]
        command += ["--socket-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid()), *more]
        child = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, start_new_session=True)
        theirs.close()
        started.append((child, ours))
        return child, ours

    yield start
    for child, ours in started:
        ours.close()
        child.kill()
        child.communicate()


def session_is_the_nicest(pid: int) -> bool:
    """`/autogroup-7 nice 19`, or nothing at all for a process of the first session, which has no group."""
    return Path(f"/proc/{pid}/autogroup").read_text().endswith(" nice 19\n")


async def test_the_process_runs_only_if_nothing_else_wants_its_core(waiting):
    """SCHED_IDLE and the least nice, before torch is imported; on the cores that it was given; the first victim."""
    core = max(os.sched_getaffinity(0))
    child, _ = waiting("--cores", str(core))
    assert await becomes_true(lambda: os.sched_getscheduler(child.pid) == os.SCHED_IDLE, 60.0)

    assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19
    assert os.sched_getaffinity(child.pid) == {core}
    assert badness_of(child.pid) == 1000


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroups")
async def test_its_session_has_the_least_share_of_a_core(waiting):
    """Sessions come before processes: without it, an idle process of a session of its own gets half of a core."""
    child, _ = waiting()
    assert await becomes_true(lambda: session_is_the_nicest(child.pid), 60.0)

    assert not session_is_the_nicest(os.getpid())


async def test_the_process_of_a_run_on_all_cores_may_be_an_ordinary_one(waiting):
    """`prune.analysis_priority: normal`; it is the first victim nevertheless."""
    child, _ = waiting("--priority", "normal")
    assert await becomes_true(lambda: badness_of(child.pid) == 1000, 60.0)

    assert os.sched_getscheduler(child.pid) == os.sched_getscheduler(0)


def test_a_process_that_is_asked_for_nothing_ends(waiting):
    """The daemon closed the connection before its request: there is no answer, and no traceback."""
    child, ours = waiting("--priority", "normal")
    ours.close()
    _, errors = child.communicate(timeout=60)

    assert (child.returncode, errors) == (0, b"")


def test_the_process_dies_with_its_daemon(tmp_path):
    """Even if the daemon is killed: here a process that started it, and then kills itself."""
    code = f"""
import os, signal, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
command = [sys.executable, "-m", "tolariad.trainer", "--analyse", "--run", {str(tmp_path)!r}, "--config-json",
    "nowhere", "--socket-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())]
child = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
print(child.pid, flush=True)
while os.sched_getscheduler(child.pid) != os.SCHED_IDLE:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(daemon.stdout.readline())
    assert daemon.wait(60) == -signal.SIGKILL
    daemon.stdout.close()
    assert within(20.0, lambda: not lives(pid)), "the process of the analysis outlives its daemon"


def analyses_of(daemon: int) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal()
        and b"--analyse" in (line := command_of(entry))
        and f"--parent-pid\0{daemon}\0".encode() in line
        and lives(int(entry.name))
    ]


def badness_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def command_of(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
