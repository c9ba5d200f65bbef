"""Orders with extreme values, against a live run: refused with a sentence, and the run trains on."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.daemon.harness import CallFailed, of_type
from tolariad.cli.tolaria import tolaria
from tolariad.core import messages as m

HUGE = "9" * 23


def test_an_order_with_a_huge_number_leaves_a_live_run_training(start, run_dir):
    """By the command and by a raw call; orders before, beside and after it are accepted."""
    daemon = start(environ={"FAKE_STEP_S": "0.02"}, task="digits", epochs=100_000)
    daemon.until(lambda status: status["step"] > 5)
    before = daemon.status()["step"]
    asked = ["--socket", str(run_dir / "control.sock")]
    runner = CliRunner()
    shown = [
        runner.invoke(tolaria, ["quarantine", "add", *asked, "--batch", f"1:1-{number}"]).exception
        for number in (HUGE, 2**64, 2**53)
    ]
    long = runner.invoke(tolaria, ["checkpoint", *asked, "--reason", "x" * 5000])
    with pytest.raises(CallFailed, match="Refused"):
        daemon.call("QuarantineAdd", until=int(HUGE))
    daemon.call("Note", text="after")
    daemon.until(lambda status: status["step"] > before + 5)
    daemon.call("Stop")
    assert daemon.wait() == 0, daemon.stderr

    assert ["batches.last must be a whole number" in json.dumps(str(one.parameters)) for one in shown] == [True] * 3
    assert "at most 4096 characters" in long.output
    assert of_type(run_dir, m.QuarantineAdded) == []
    assert [one.text for one in of_type(run_dir, m.NoteAdded)] == ["after"]
    assert of_type(run_dir, m.RunStopped)
    assert "the kernel failed" not in daemon.stderr
