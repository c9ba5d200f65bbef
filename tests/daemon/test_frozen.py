"""If the journal cannot be written, the daemon stays, gives the reason, and stops training."""

from __future__ import annotations

import resource
import signal
import time

import pytest

from tests.daemon.harness import CallFailed, is_gone, of_type
from tolariad.core import messages as m

SMALL = ["journal.segment_bytes=65536"]


def test_a_full_disk_freezes_the_run_and_the_socket_says_why(start, run_dir):
    """The next segment cannot be created. No step is lost, orders are refused with the reason, and a new start
    continues.
    """
    daemon = start(environ={"FAKE_TRAINER": "crawl@4"}, sets=SMALL, task="digits", epochs=3)
    running = daemon.until(lambda status: status["step"] >= 4)
    # No byte after the first 8 KiB of any file can be written any more, so neither here nor in a next segment.
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    status = daemon.until(lambda status: status["frozen"], "the freeze")
    assert status["phase"] == "frozen"
    assert "space" in status["frozen"] or "journal" in status["frozen"]
    with pytest.raises(CallFailed, match=r"Frozen|NotDurable"):
        daemon.call("Pause")
    step = status["step"]
    time.sleep(0.7)
    assert daemon.status()["step"] == step
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 74, daemon.stderr
    assert is_gone(running["trainer"]["pid"])
    assert [one.step for one in of_type(run_dir, m.StepCompleted)][:step] == list(range(1, step + 1))

    again = start(sets=SMALL)
    assert again.wait() == 0, again.stderr
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))
    assert of_type(run_dir, m.RunCompleted)
