"""A copy of a live run: one made in a pause verifies; one made during training verifies, or the message says what to
do.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from journal import Verdict, verify
from tests.daemon.harness import of_type
from tests.waiting import wait_for
from tolariad.core import messages as m

SETS = ["journal.segment_bytes=262144"]
PIECE = 4096


def copied_slowly(source: Path, target: Path, pause_s: float) -> None:
    """Copy like `cp -a` over a slow link: first the names, then each file block by block.

    Deleted files are left out.
    """
    target.mkdir()
    paths: list[Path] = []
    # Packed, renamed or removed since its name was read: cp says so, and goes on with the next.
    with suppress(FileNotFoundError):
        paths += sorted(source.iterdir())
    for path in paths:
        if path.is_dir():
            copied_slowly(path, target / path.name, pause_s)
        elif path.suffix != ".sock":
            with suppress(FileNotFoundError), path.open("rb") as original, (target / path.name).open("wb") as copy:
                while piece := original.read(PIECE):
                    copy.write(piece)
                    time.sleep(pause_s)


def copies(daemon, folder: Path, count: int, pause_s: float) -> Iterator[Path]:
    for number in range(count):
        target = folder / f"copy-{number}"
        copied_slowly(daemon.run_dir, target, pause_s)
        yield target
        shutil.rmtree(target)


@pytest.fixture
def live(start):
    """A run whose segments change every sixty steps or so, each packed when it is full."""
    daemon = start(environ={"FAKE_STEP_S": "0.002"}, task="digits", epochs=100_000, sets=SETS)
    daemon.until(lambda status: status["step"] > 100)
    return daemon


def test_a_copy_made_in_a_pause_verifies_and_can_be_gone_on_with(live, start, tmp_path):
    """The recipe of the operations page, while only the trainer is paused; the copy starts and continues."""
    live.call("Pause")
    live.until(lambda status: status["phase"] == "paused", "the pause")
    step = live.status()["step"]
    # What was filled just before the pause is packed in its first seconds, and `cp` may miss it.
    wait_for(lambda: len([*(live.run_dir / "journal").glob("*.wal")]) == 1, "that all full segments are packed")
    reports = [verify(copy / "journal") for copy in copies(live, tmp_path, 3, 0.0005)]
    shutil.copytree(live.run_dir, tmp_path / "kept", ignore=shutil.ignore_patterns("*.sock"))
    live.call("Resume")
    live.until(lambda status: status["step"] > step, "that it goes on")
    live.call("Stop")
    assert live.wait() == 0, live.stderr

    assert [report.verdict for report in reports] == [Verdict.CLEAN] * 3
    second = start(run_dir=tmp_path / "kept", environ={"FAKE_STEP_S": "0.002"}, sets=SETS)
    second.until(lambda status: status["phase"] == "paused", "that the copy is paused, too")
    second.call("Resume")
    second.until(lambda status: status["step"] > step, "that the copy goes on by itself")
    second.call("Stop")
    assert second.wait() == 0, second.stderr
    steps = [one.step for one in of_type(tmp_path / "kept", m.StepCompleted)]
    assert sorted(set(steps)) == list(range(1, max(steps) + 1))


def test_a_copy_made_while_it_goes_on_verifies_or_says_what_to_do(live, tmp_path):
    """Copied while segments fill, are sealed and packed: each verdict that is not clean says what to do."""
    said = []
    for copy in copies(live, tmp_path, 8, 0.0005):
        report = verify(copy / "journal")
        if report.verdict not in (Verdict.CLEAN, Verdict.TORN_TAIL):
            said.append(report.problem.sentence)
    live.call("Stop")
    assert live.wait() == 0, live.stderr

    assert [one for one in said if "pause the run and copy the journal again" not in one] == []
    assert verify(live.run_dir / "journal").verdict is Verdict.CLEAN
