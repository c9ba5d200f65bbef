"""The real process of an analysis: it answers as `analyse` does, stands back, and goes with its daemon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.supervisor.strategists import becomes
from tests.trainer.conftest import ROOT
from tests.trainer.pruning.test_analysing import FREE, Trained
from tests.trainer.tasks.analysed import FILE
from tolariad.core.checkpoints.words import CheckpointRef
from tolariad.core.pruning.words import AnalyzeCheckpoint
from tolariad.core.settings.rules import read_resolved
from tolariad.supervisor.analyst import Analyst, AnalystSetup

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


@pytest.fixture
def trained(tmp_path):
    made = Trained(tmp_path, f"{FILE}:Lossy", prune=FREE)
    (tmp_path / "config.resolved.json").write_bytes(made.config)
    return made


async def test_the_process_answers_as_the_analysis_and_runs_when_nothing_else_wants_the_core(trained):
    """SCHED_IDLE, the least nice, only the core that it was given, the first victim; one thread computes."""
    request, replies, seen = trained.request, [], {}
    core = max(os.sched_getaffinity(0))
    setup = AnalystSetup(
        run_dir=trained.run,
        config=trained.run / "config.resolved.json",
        prune=read_resolved(trained.config).prune,
        environment=dict(os.environ),
        cores=lambda: (core,),
    )
    analyst = Analyst(setup, replies.append)
    analyst.obey(
        AnalyzeCheckpoint(
            cycle=request.cycle,
            checkpoint=CheckpointRef(id=request.checkpoint, step=6, epoch=1, batch=0, manifest=request.manifest),
            epoch=request.epoch,
            phase=request.phase,
            share=request.share,
            cap=request.cap,
            importance=request.output,
        )
    )

    def look():
        for pid in analyses_of(os.getpid()) if not replies else ():
            try:
                scheduler = os.sched_getscheduler(pid)
                if scheduler != os.SCHED_IDLE:
                    continue  # it has just been started
                seen["cores"] = os.sched_getaffinity(pid)
                seen["nice"] = os.getpriority(os.PRIO_PROCESS, pid)
                seen["victim"] = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
                seen["idle"] = True
            except ProcessLookupError:
                continue
        return bool(replies)

    await becomes(look, 120.0)
    await analyst.close()
    (reply,) = replies

    assert reply.why == ""
    here = trained.analyse()
    assert (reply.found.units, reply.found.plan, reply.found.sha256) == (here.units, here.plan, here.masks_sha256)
    assert (reply.found.correlation, reply.found.samples) == (here.correlation, here.samples)
    assert seen == {"cores": {core}, "nice": 19, "victim": 1000, "idle": True}
    assert (trained.run / reply.found.importance).stat().st_size == reply.found.importance_size
    assert analyses_of(os.getpid()) == []


def test_the_process_dies_with_its_daemon(trained):
    """Even if the daemon is killed: here a process that started it, and then kills itself."""
    code = f"""
import os, signal, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
command = [sys.executable, "-m", "tolariad.trainer", "--analyse", "--run", {str(trained.run)!r}, "--config-json",
    "nowhere", "--socket-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())]
child = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
print(child.pid, flush=True)
while os.sched_getscheduler(child.pid) != os.SCHED_IDLE:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pid = int(daemon.stdout.readline())
    assert daemon.wait(60) == -signal.SIGKILL
    daemon.stdout.close()
    deadline = time.monotonic() + 20.0
    while lives(pid):
        assert time.monotonic() < deadline, "the process of the analysis outlives its daemon"
        time.sleep(0.01)


def test_a_process_that_is_asked_for_nothing_ends(trained):
    """The daemon closed the connection before its request: there is no answer, and no traceback."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tolariad.trainer", "--analyse", "--run", str(trained.run), "--config-json", "x"]
    command += ["--socket-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())]
    child = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, cwd=ROOT)
    theirs.close()
    ours.close()
    _, errors = child.communicate(timeout=60)

    assert (child.returncode, errors) == (0, b"")


def analyses_of(daemon: int) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal()
        and b"--analyse" in (line := command_of(entry))
        and f"--parent-pid\0{daemon}\0".encode() in line
        and lives(int(entry.name))
    ]


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
