"""What `tolariad run` prints where no terminal is, as in `make run | tee`: short lines for people, or JSON if asked."""

from __future__ import annotations

import json
import subprocess
import sys

COMMAND = (sys.executable, "-c", "from tolariad.cli.tolariad import main; main()", "run", "--task", "digits")
COLUMNS_MAX = 160


def ran(folder, *options, errors):
    command = (*COMMAND, "--epochs", "1", "--dir", "digits", *options)
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, check=True)


def test_a_pipe_gets_lines_for_people(tmp_path):
    """Both streams together: stages, progress, the end. None is JSON, and none is longer than a wide terminal."""
    lines = ran(tmp_path, errors=subprocess.STDOUT).stdout.splitlines()

    assert lines[0] == "starting the trainer"
    assert any(line.startswith("completed: digits, 23 steps in 1 of 1 epoch") for line in lines)
    assert not [line for line in lines if line.startswith("{") or len(line) > COLUMNS_MAX or not line.isprintable()]


def test_json_is_written_if_it_is_asked_for(tmp_path):
    """The log is JSON, line by line, and has what happened; progress stays what it is, on the other stream."""
    ended = ran(tmp_path, "--set", "logging.format=json", errors=subprocess.PIPE)
    records = [json.loads(line) for line in ended.stderr.splitlines()]

    assert "RunCompleted" in [one.get("told_by") for one in records]
    assert all(one.keys() >= {"level", "event", "logger", "timestamp"} for one in records)
    assert ended.stdout.splitlines()[0] == "starting the trainer"
