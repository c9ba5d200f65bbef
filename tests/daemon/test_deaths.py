"""The trainer may die: journal, socket and state survive, and the run continues by itself."""

from __future__ import annotations

import threading
import time

from tests.daemon.harness import CallFailed, is_gone, of_type
from tests.waiting import PATIENCE_S, wait_for
from tolariad.core import messages as m

# A trainer that the machine lets wait for a second or two must not count as one that hangs.
HANG_S = 4.0


class Caller(threading.Thread):
    """Asks for the status continuously, and keeps the errors, and when it was answered, by the monotonic clock."""

    def __init__(self, daemon) -> None:
        super().__init__(daemon=True)
        self.daemon_process = daemon
        self.answered: list[int] = []
        self.failures: list[str] = []

    def run(self) -> None:
        while self.daemon_process.process.poll() is None:
            try:
                answer = self.daemon_process.status()
            except (OSError, CallFailed) as error:
                self.failures.append(repr(error))
                break
            self.answered.append(time.monotonic_ns())
            if answer["phase"] == "completed":
                break
            time.sleep(0.01)


def test_whatever_a_trainer_sends_the_recorder_lives_and_says_why_it_ended_the_trainer(start, run_dir):
    """A packet without its file, and one with a pipe as its file. The trainer is ended; the next one goes on."""
    daemon = start(environ={"FAKE_TRAINER": "naked@4,pipe@8"}, linger=True)
    daemon.until(lambda status: status["phase"] == "completed", "completion")
    daemon.process.terminate()
    assert daemon.wait() == 0, daemon.stderr

    refused, deaths = of_type(run_dir, m.ReportRefused), of_type(run_dir, m.TrainerDied)
    assert "came with 0 of its 1 files" in refused[0].why
    assert "no readable memory file" in refused[1].why
    assert [(one.incarnation, one.step, one.reason) for one in deaths] == [
        (one.incarnation, step, m.DeathReason.KILLED) for one, step in zip(refused, (4, 8), strict=True)
    ]
    assert len(of_type(run_dir, m.DaemonStarted)) == 1
    steps = [one.step for one in of_type(run_dir, m.StepCompleted)]
    assert steps == list(range(1, len(steps) + 1))


def test_every_death_is_an_event_and_the_run_goes_on(start, run_dir):
    """Segfault, SIGKILL, abort, exception, no memory and a hang in one run: each with its cause, every step once."""
    deeds = "segv@4,kill@8,abort@12,raise@16,memory@20,hang@28"
    environ = {"FAKE_TRAINER": deeds, "FAKE_STEP_S": "0.02"}
    # All seven trainers are forks. One that had to import its modules on a busy machine could seem to hang.
    daemon = start(environ=environ, hang_s=HANG_S, unknown_s=PATIENCE_S, stacks_s=20.0, shells=7, linger=True)
    daemon.until(lambda status: status["live"])
    caller = Caller(daemon)
    caller.start()
    daemon.until(lambda status: status["phase"] == "completed", "completion")
    daemon.process.terminate()
    assert daemon.wait() == 0, daemon.stderr

    deaths = of_type(run_dir, m.TrainerDied)
    assert [(one.reason, one.signal or one.exit_code, one.step) for one in deaths] == [
        (m.DeathReason.SIGNAL, "SIGSEGV", 4),
        (m.DeathReason.SIGNAL, "SIGKILL", 8),
        (m.DeathReason.SIGNAL, "SIGABRT", 12),
        (m.DeathReason.EXCEPTION, 1, 16),
        (m.DeathReason.MEMORY, 1, 20),
        (m.DeathReason.HANG, "SIGKILL", 28),
    ]
    assert "the loss is a teapot" in deaths[3].output
    assert "misbehave" in deaths[5].stacks
    (hung,) = of_type(run_dir, m.TrainerHung)
    assert hung.silent_s >= HANG_S
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))
    assert len(of_type(run_dir, m.RunCompleted)) == 1
    assert caller.failures == []
    # A call that waited for the hanging trainer would be answered after its end only.
    (last,) = [one for one in of_type(run_dir, m.StepCompleted) if one.step == 28]
    assert [one for one in caller.answered if last.mono < one < hung.mono]


def test_what_a_trainer_leaves_is_ended_with_it(start, run_dir):
    """A worker in the trainer's group is gone when the next trainer starts."""
    daemon = start(environ={"FAKE_TRAINER": "worker@5,abort@7"})
    assert daemon.wait() == 0, daemon.stderr
    worker = int((run_dir / "worker").read_text())
    wait_for(lambda: is_gone(worker))


def test_what_the_trainer_prints_is_kept(start, run_dir):
    """Its lines are in trainer.log, and on the daemon's stderr too."""
    daemon = start(environ={"FAKE_TRAINER": "print@5"})
    assert daemon.wait() == 0
    assert (run_dir / "logs" / "trainer.log").read_text() == "a line of the task\n"
    assert "a line of the task\n" in daemon.stderr


def test_the_end_of_the_daemon_is_the_end_of_the_trainer(start, run_dir):
    """After SIGKILL for the daemon its trainer ends by itself; the next start records it and continues, every step
    once.
    """
    daemon = start(environ={"FAKE_TRAINER": "worker@3,crawl@4"})
    status = daemon.until(lambda status: status["step"] >= 4)
    daemon.kill()
    wait_for(lambda: is_gone(status["trainer"]["pid"]))
    wait_for(lambda: is_gone(int((run_dir / "worker").read_text())))

    again = start()
    assert again.wait() == 0, again.stderr
    assert [one.reason for one in of_type(run_dir, m.TrainerDied)] == [m.DeathReason.WITH_DAEMON]
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))


def test_a_trainer_that_outlives_its_daemon_is_ended_by_the_next(start, run_dir):
    """It holds the lock and ignores everything: the next daemon ends it first, then trains on, every step once."""
    daemon = start(environ={"FAKE_ORPHAN": "1", "FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    daemon.kill()
    orphan = int((run_dir / "orphan").read_text())
    assert not is_gone(orphan)

    again = start()
    assert again.wait() == 0, again.stderr
    assert is_gone(orphan)
    started = [one.pid for one in of_type(run_dir, m.TrainerStarted)]
    assert len(started) == 2
    assert started[0] == orphan
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))
