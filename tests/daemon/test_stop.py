"""A stop is orderly, has a deadline, and leaves no process."""

from __future__ import annotations

import signal
import time

import pytest

from tests.daemon.harness import is_gone, of_type
from tests.recorded import events_of
from tolariad.core import messages as m

CRAWL = {"FAKE_TRAINER": "crawl@4"}


@pytest.mark.parametrize(("which", "loop"), [(signal.SIGTERM, "uvloop"), (signal.SIGINT, "asyncio")])
def test_a_signal_stops_at_a_boundary_with_a_checkpoint(start, run_dir, tmp_path, which, loop):
    """The last event is a durable RunStopped, its checkpoint is of the last step, no process is left; a start
    continues.

    Once on each event loop: uvloop is an optimisation, and may be missing.
    """
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    hidden = {"PYTHONPATH": str(tmp_path)} if loop == "asyncio" else {}
    daemon = start(environ=CRAWL | hidden)
    status = daemon.until(lambda status: status["step"] >= 3)
    daemon.send(which)
    assert daemon.wait() == 128 + which, daemon.stderr
    assert is_gone(status["trainer"]["pid"])
    assert not (run_dir / "control.sock").exists()
    stopped = of_type(run_dir, m.RunStopped)[0]
    last_step = of_type(run_dir, m.StepCompleted)[-1].step
    begun = of_type(run_dir, m.CheckpointBegun)[-1]
    assert (stopped.step, stopped.checkpoint, begun.reason) == (last_step, begun.id, m.CheckpointReason.STOP)
    assert events_of(run_dir)[-1] == stopped

    again = start()
    assert again.wait() == 0, again.stderr
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))
    assert of_type(run_dir, m.RunCompleted)


def test_a_second_signal_stops_at_once(start, run_dir):
    """While the last checkpoint takes ten minutes, a second signal ends everything, and the stop is recorded."""
    daemon = start(environ=CRAWL)
    daemon.until(lambda status: status["step"] >= 3)
    daemon.kill()
    daemon = start(environ={"FAKE_TRAINER": "crawl@7", "FAKE_CHECKPOINT_S": "600"})
    # With a heartbeat: until the daemon has begun to serve, the folded state shows the trainer of the killed daemon.
    status = daemon.until(lambda status: status["phase"] == "running" and status["trainer"]["activity"])
    daemon.send(signal.SIGTERM)
    daemon.until(lambda status: status["trainer"]["activity"] and status["phase"] == "stopping")
    started = time.monotonic()
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr
    assert time.monotonic() - started < 60
    assert is_gone(status["trainer"]["pid"])
    assert of_type(run_dir, m.RunStopped)[-1].mode is m.StopMode.KILL


def test_a_stop_that_does_not_advance_is_cut_short(start, run_dir):
    """A trainer that hangs does not obey; when the stop's budget is used up it is ended without a checkpoint."""
    daemon = start(environ={"FAKE_TRAINER": "hang@5"}, stop_budget_s=0.5)
    daemon.until(lambda status: status["step"] >= 5)
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr
    assert [one.mode for one in of_type(run_dir, m.StopRequested)] == [m.StopMode.GRACEFUL, m.StopMode.KILL]
    assert of_type(run_dir, m.RunStopped)[-1].step == 5


def test_a_command_stops_the_daemon_too(start, run_dir):
    """`Stop` over the socket is answered with its number when it is durable, and the event has the actor."""
    daemon = start(environ=CRAWL)
    daemon.until(lambda status: status["step"] >= 3)
    assert daemon.call("Stop", reason="test")["seq"] > 0
    assert daemon.wait() == 0, daemon.stderr
    asked = of_type(run_dir, m.StopRequested)[0]
    assert (asked.origin, asked.actor.reason) == (m.Origin.COMMAND, "test")
