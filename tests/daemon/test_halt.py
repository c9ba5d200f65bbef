"""HALT: the gate closes at once, the trainer ends, and only an operator can resume the run."""

from __future__ import annotations

import signal

import pytest

from tests.daemon.harness import SETS, CallFailed, is_gone, of_type
from tests.recorded import events_of
from tolariad.core import messages as m

SLOW = {"FAKE_STEP_S": "0.02"}


@pytest.fixture
def training(start):
    """A trainer process in its steps, of 20 ms each."""
    daemon = start(environ=SLOW, task="digits", epochs=500, sets=[*SETS, "journal.sync=step"])
    daemon.until(lambda status: (status.get("step") or 0) >= 4, "step 4")
    return daemon


def test_a_halt_lets_no_further_update_through_and_only_an_operator_goes_on(training, start, run_dir):
    """One applied step may still be reported; restarts, other orders and other emergencies leave the run frozen."""
    pid = training.status()["trainer"]["pid"]
    training.call("Emergency", level="critical", reason="smoke")
    status = training.until(lambda status: status["phase"] == "frozen" and not status["trainer"]["alive"], "the freeze")
    assert status["frozen"] == "smoke"
    assert is_gone(pid)
    story = events_of(run_dir)
    at = next(number for number, event in enumerate(story) if isinstance(event, m.EmergencyRaised))
    assert isinstance(story[at + 1], m.RunFrozen)
    assert sum(isinstance(event, m.StepCompleted) for event in story[at:]) <= 1
    rows = {one["name"]: one for one in training.call("Budgets")["table"]["budgets"]}
    # The budget is 100 ms, for the freeze; this is the end of a process, on a machine that does other things too.
    assert 0 < rows["emergency_critical"]["worst"] < 5000

    for level in m.Level:
        training.call("Emergency", level=level.value, reason="more")
    for refused in ("Pause", "Checkpoint"):
        with pytest.raises(CallFailed, match="WrongPhase"):
            training.call(refused)
    training.kill()
    again = start(environ=SLOW, sets=[*SETS, "journal.sync=step"])
    assert again.until(lambda status: status["phase"] != "starting")["frozen"] == "smoke"
    assert len(of_type(run_dir, m.TrainerStarted)) == 1
    # A signal, as at a reboot, is no operator either.
    again.send(signal.SIGTERM)
    assert again.wait() == 143, again.stderr
    again = start(environ=SLOW, sets=[*SETS, "journal.sync=step"])
    status = again.until(lambda status: status["phase"] != "starting")
    assert (status["phase"], status["frozen"], status["trainer"]["alive"]) == ("frozen", "smoke", False)

    again.call("Rollback", epoch=0, reason="a fresh start")
    again.until(lambda status: status["phase"] == "running", "training")
    assert (len(of_type(run_dir, m.RolledBack)), of_type(run_dir, m.ResumeRequested)) == (1, [])
    again.call("Emergency", level="critical", reason="more smoke")
    again.until(lambda status: status["phase"] == "frozen")
    again.call("Stop", mode="now")
    assert again.wait() == 0
    assert len(of_type(run_dir, m.RunStopped)) == 1
