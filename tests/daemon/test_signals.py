"""Signals to the daemon, from its first moment to its last, to its children, and through what starts daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.harness import SETS, of_type
from tests.waiting import wait_for
from tolariad import signals
from tolariad.core import messages as m
from tolariad.supervisor.process import ChildProcess, child_environment

CRAWL = {"FAKE_TRAINER": "crawl@4"}
WORDS = ("signals.USR1=checkpoint", "signals.USR2=stop")
SIGNALLED = "tests.daemon.start_signalled"


def status_of(pid: int, field: str) -> int:
    """Return a set of signals in /proc/PID/status, as bits."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")), 16)


def bits(names: frozenset[signal.Signals]) -> int:
    return sum(1 << (one - 1) for one in names)


def test_a_checkpoint_by_signal_and_a_stop_by_signal(start, run_dir):
    """USR1 is an order for a checkpoint, and the run goes on. USR2 says `stop`, and has the checkpoint of the last
    step; the SIGTERM that follows a scheduler's warning does not cut that short. The next start goes on.
    """
    daemon = start(environ=CRAWL | {"FAKE_CHECKPOINT_S": "0.3"}, sets=[*SETS, *WORDS])
    status = daemon.until(lambda status: status["step"] >= 3)
    daemon.send(signal.SIGUSR1)
    daemon.until(lambda _: len(of_type(run_dir, m.CheckpointCommitted)) > 1)
    assert daemon.status()["trainer"]["pid"] == status["trainer"]["pid"]
    daemon.send(signal.SIGUSR2)
    wait_for(lambda: of_type(run_dir, m.StopRequested))
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr

    (order,) = of_type(run_dir, m.CheckpointRequested)
    assert (order.actor.program, order.actor.reason) == ("signal", "SIGUSR1")
    begun = [one.reason for one in of_type(run_dir, m.CheckpointBegun)]
    (stopped,) = of_type(run_dir, m.RunStopped)
    assert begun == [m.CheckpointReason.START, m.CheckpointReason.ORDERED, m.CheckpointReason.STOP]
    assert of_type(run_dir, m.CheckpointCommitted)[-1].step == stopped.step
    assert [(one.mode, one.signal) for one in of_type(run_dir, m.StopRequested)] == [(m.StopMode.GRACEFUL, "SIGUSR2")]
    # Another word is free to change: no flag is needed.
    assert start(sets=[*SETS, "signals.USR2=checkpoint"]).wait() == 0
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))


def test_signals_during_the_start_wait_for_it(start, run_dir):
    """The default action would end the process. A checkpoint is refused before training begins, and said; a stop is
    recorded after the start of the run.
    """
    early = {"TOLARIA_SIGNALS": "open:SIGUSR1+SIGHUP,begin:SIGUSR1"}
    going_on = start(module=SIGNALLED, environ=early, sets=[*SETS, *WORDS])
    assert going_on.wait() == 0, going_on.stderr
    assert "SIGUSR1: no checkpoint is taken" in going_on.stderr
    assert of_type(run_dir, m.RunCompleted)

    other = run_dir.parent / "other"
    stops = {"TOLARIA_SIGNALS": "open:SIGUSR2,begin:SIGTERM"}
    stopped = start(
        run_dir=other, module=SIGNALLED, environ=stops | CRAWL, sets=[*SETS, *WORDS], task="digits", epochs=3
    )
    assert stopped.wait() == 143, stopped.stderr
    assert of_type(other, m.RunStarted)
    # The order of the two is the system's: the one that had to wait, and the one that came later.
    assert len(of_type(other, m.StopRequested)) == 1
    assert of_type(other, m.RunStopped)[0].mode is m.StopMode.GRACEFUL


@pytest.mark.parametrize("name", ["SIGTERM", "SIGTERM+SIGUSR1"])
def test_sigterm_before_the_run_is_open_ends_the_start(start, run_dir, name):
    """Exit 143, and nothing is recorded."""
    daemon = start(module=SIGNALLED, environ={"TOLARIA_SIGNALS": f"open:{name}"})
    assert daemon.wait() == 143, daemon.stderr
    assert not (run_dir / "journal").exists()


def test_signals_after_the_end_do_not_change_the_code(start, run_dir):
    """The run is complete, and the process is about to exit: whatever comes then, it is done."""
    late = {"TOLARIA_SIGNALS": "leave:SIGTERM+SIGUSR1+SIGUSR2+SIGHUP+SIGINT"}
    daemon = start(module=SIGNALLED, environ=late, task="digits", epochs=1)
    assert daemon.wait() == 0, daemon.stderr
    assert of_type(run_dir, m.RunCompleted)
    assert of_type(run_dir, m.StopRequested) == []


def test_a_signal_to_every_process_ends_no_trainer(start, run_dir):
    """As `scancel --signal` and `systemctl kill` send it: the trainer ignores what the daemon acts on."""
    daemon = start(environ=CRAWL)
    trainer = daemon.until(lambda status: status["step"] >= 3)["trainer"]["pid"]
    assert status_of(trainer, "SigIgn") & bits(signals.DAEMONS) == bits(signals.DAEMONS)
    assert status_of(trainer, "SigBlk") & bits(signals.DAEMONS) == 0
    for one in signals.DAEMONS:
        os.killpg(trainer, one)
    for one in (signal.SIGUSR1, signal.SIGUSR2):
        daemon.send(one)
    step = daemon.status()["step"]
    daemon.until(lambda status: status["step"] > step + 1)
    os.killpg(trainer, signal.SIGTERM)
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr
    assert of_type(run_dir, m.TrainerDied) == []
    assert len(of_type(run_dir, m.TrainerStarted)) == 1


@pytest.mark.parametrize(
    ("wrapper", "first"), [(("nohup",), signal.SIGHUP), (("timeout", "--preserve-status", "600"), None)], ids=str
)
def test_what_starts_daemons(start, run_dir, wrapper, first):
    """`nohup`: a closed terminal changes nothing. `timeout` passes its SIGTERM on, and the code back."""
    daemon = start(environ=CRAWL, wrapper=wrapper)
    status = daemon.until(lambda status: status["step"] >= 2)
    if first is not None:
        os.kill(status["pid"], first)
        daemon.until(lambda now: now["step"] > status["step"])
    # To `timeout` itself, as if its time were up.
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr
    assert of_type(run_dir, m.RunStopped)


NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.skipif(
    subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0, reason="no namespaces for this user"
)
def test_as_process_1_it_hears_signals_from_its_first_moment(start, run_dir):
    """The kernel drops a signal to process 1 that has no handler, as the daemon of a container has none by default."""
    waiting = {"TOLARIA_FAILPOINT": "replay:1:600000000"}
    opening = start(environ=waiting, wrapper=NAMESPACE)
    wait_for((run_dir / "journal" / "lock").exists)
    os.kill(child_of(opening.pid), signal.SIGTERM)
    assert opening.wait() == 143, opening.stderr

    daemon = start(environ=CRAWL, wrapper=NAMESPACE)
    daemon.until(lambda status: status["step"] >= 2)
    os.kill(child_of(daemon.pid), signal.SIGUSR1)
    daemon.until(lambda _: of_type(run_dir, m.CheckpointRequested))
    os.kill(child_of(daemon.pid), signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr
    assert of_type(run_dir, m.RunStopped)


def child_of(pid: int) -> int:
    """Return the process that `unshare` has started, by its number out here."""
    return wait_for(lambda: [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()])[0]


def test_a_process_begins_with_the_signals_blocked_and_then_ignores_them(tmp_path):
    """One that came before it was ready to ignore it must not end it."""
    code = (
        "import os, signal, sys; from tolariad import signals; "
        "[os.kill(os.getpid(), one) for one in signals.DAEMONS]; "
        "signals.leave_to_the_daemon(); sys.exit(7)"
    )
    with (tmp_path / "output").open("wb") as output:
        child = ChildProcess.spawn((sys.executable, "-c", code), child_environment(os.environ), output.fileno(), ())
    ended = wait_for(child.reap)
    assert (ended.code, (tmp_path / "output").read_text()) == (7, "")
