"""The script in docs/library.md: as it was and as it became, both run; killed and started again it ends the same."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.house.tree import ROOT
from tests.recorded import events_of, of
from tolariad.core import messages as m

# Prints every bit of the parameters.
BITS = """
import hashlib
print(hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.state_dict().values())).hexdigest())"""
# The plain loop takes the samples in their order, and computes with one thread.
OPTIONS = '"rng_seed": 1, "torch_threads": 1, "checkpoint_interval_epochs": 1, "checkpoint": {"min_gap_s": 0}'


def scripts() -> tuple[str, str]:
    """The two sides of the page's diff."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    lines = re.search(r"```diff\n(.*?)```", page, re.DOTALL)[1].splitlines()
    sides = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
    plain, recorded = sides
    return plain, recorded


TIMEOUT_S = 300.0
HELD = """
epochs = run.epochs(5)
next(epochs)
batches = run.batches()
next(batches)
"""


def start(template, folder, script, failpoint="", *, code=0):
    """Run a script in a folder. Return what it printed."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script + BITS)
    ended = template.run([], folder=folder, program=str(folder / "script.py"), failpoint=failpoint)
    assert ended.returncode == code, ended.stderr
    return ended.stdout.splitlines()


def test_five_lines_change():
    """One more gives the metrics."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    lines = re.search(r"```diff\n(.*?)```", page, re.DOTALL)[1].splitlines()
    added = [line for line in lines if line.startswith("+")]
    assert len([line for line in added if "validated" not in line]) == 5


@pytest.fixture(scope="module")
def sides():
    """Both scripts, for the same order of the data."""
    plain, recorded = (script.replace(", shuffle=True", "") for script in scripts())
    assert '"rng_seed": 1' in recorded
    return plain, recorded.replace('"rng_seed": 1', OPTIONS)


@pytest.fixture(scope="module")
def expected(template, sides, tmp_path_factory):
    """Return the output of the plain script."""
    return start(template, tmp_path_factory.mktemp("plain"), sides[0])


def test_the_recorded_script_prints_what_the_plain_one_prints(template, tmp_path, sides, expected):
    """Every accuracy and every bit."""
    assert start(template, tmp_path, sides[1]) == expected
    assert len(expected) == 11


@pytest.mark.parametrize(
    "points", [("step:41",), pytest.param(("gate:97", "boundary:33", "step:3"), marks=pytest.mark.torture)], ids=str
)
def test_the_script_killed_and_started_again_ends_with_the_same_bits(template, tmp_path, sides, expected, points):
    """kill -9, as often as there are points; the steps that are made again come out the same."""
    for point in points:
        start(template, tmp_path, sides[1], point, code=-signal.SIGKILL)
    again = start(template, tmp_path, sides[1])
    events = events_of(tmp_path / "runs" / "mine")
    reruns = [event for event in events if isinstance(event, m.RerunFinished)]

    assert again == expected[-len(again) :]
    assert len(again) > 1
    assert reruns
    assert all(rerun.first_difference is None for rerun in reruns)
    assert [e.step for e in events if isinstance(e, m.StepCompleted)] == list(range(1, 161))


def test_a_program_that_holds_its_iterators_ends_and_says_so(tmp_path, sides):
    """Nothing closes them before the interpreter's end, which is too late for the kernel's thread."""
    head, _, _ = sides[1].partition("for epoch in ")
    # No fork: it would leave without that end.
    ended = subprocess.run(
        [sys.executable, "-c", head + HELD], cwd=tmp_path, timeout=TIMEOUT_S, capture_output=True, text=True, check=True
    )
    (raised,) = of(events_of(tmp_path / "runs" / "mine"), m.ExceptionRaised)

    assert "The program left its loop" in raised.traceback
    assert "The program left its loop" in ended.stderr
