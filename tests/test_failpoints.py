"""Failpoints: nothing unless armed; armed, the process ends at the pass that was named, once for all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PASSES = """
import sys
from tolariad.failpoints import reached
for number in range(5):
    print(number, flush=True)
    reached("step")
"""


def passes(rule: str) -> tuple[int, int]:
    """The exit code of a process that passes `step` five times, and how many of these began."""
    environment = {**os.environ, "TOLARIA_FAILPOINT": rule}
    ended = subprocess.run([sys.executable, "-c", PASSES], env=environment, capture_output=True, check=False)
    return ended.returncode, len(ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("rule", "code", "begun"),
    [
        ("", 0, 5),
        ("gate:1", 0, 5),
        ("step:3", -signal.SIGKILL, 3),
        ("gate:1,step:2:100", -signal.SIGKILL, 2),
        ("step:6", 0, 5),
        ("nowhere:1", 1, 0),
    ],
)
def test_a_process_ends_at_the_pass_that_was_named(rule, code, begun):
    """Passes count from 1; another point's rule is no rule; a name that does not exist is an error."""
    assert passes(rule) == (code, begun)


def test_with_a_file_it_happens_once_and_only_while_the_file_is_there(tmp_path):
    """The process that takes the file ends; for the next one, and before the file is there, the point is unarmed."""
    token = tmp_path / "token"
    assert passes(f"step:2@{token}") == (0, 5)
    token.touch()
    assert passes(f"step:2@{token}") == (-signal.SIGKILL, 2)
    assert not token.exists()
    assert passes(f"step:2@{token}") == (0, 5)


def test_a_point_can_raise_an_error_instead():
    """At each pass that was named; the process goes on if its code does."""
    code = PASSES.replace(
        '    reached("step")', "    try: reached('step')\n    except OSError as error: print(error.errno)"
    )
    environment = {**os.environ, "TOLARIA_FAILPOINT": "step:2!ENOSPC,step:3!EIO"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert ended.stdout.split() == ["0", "1", "28", "2", "5", "3", "4"]
