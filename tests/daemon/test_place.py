"""A run whose folder is deleted, moved or replaced while it is live stops at once, says so, and promises nothing."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from journal import Journal, Verdict, verify
from tests.daemon.harness import CallFailed, is_gone, of_type
from tests.journal.make import begin
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.daemon.place import PlaceWatch, RunPlace

# A second is promised. The machine may be busy with other tests.
PATIENCE_S = 40.0


def delete(folder: Path) -> None:
    while folder.exists():
        # Again, if a file was written meanwhile.
        shutil.rmtree(folder, ignore_errors=True)


def move(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")


def move_parent(folder: Path) -> None:
    folder.parent.rename(folder.parent.parent / "elsewhere")


def replace(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    without = shutil.ignore_patterns("*.sock")
    shutil.copytree(folder.parent / "elsewhere", folder, ignore=without, copy_function=copy_if_there)


def copy_if_there(source: str, target: str) -> None:
    """The run may rename or remove a file meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def delete_journal(folder: Path) -> None:
    shutil.rmtree(folder / "journal")


def delete_segments(folder: Path) -> None:
    for path in (folder / "journal").glob("*.wal"):
        path.unlink()


def move_checkpoints(folder: Path) -> None:
    (folder / "checkpoints").rename(folder.parent / "elsewhere")


ACTS = {
    delete: "was deleted",
    move: "was moved to {}/elsewhere while",
    move_parent: "was moved to {}/elsewhere/run while",
    replace: "was moved to {}/elsewhere while",
    delete_journal: "journal was deleted",
    delete_segments: "a file of",
    move_checkpoints: "checkpoints was moved to {}/elsewhere while",
}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_run_whose_folder_is_gone_ends_at_once_with_one_sentence(start, tmp_path, act):
    """Exit 74; the trainer is gone; the sentence says what happened, and no other command is named."""
    run_dir = tmp_path / "above" / "run"
    daemon = start(run_dir=run_dir, environ={"FAKE_TRAINER": "crawl@4"})
    trainer = daemon.until(lambda status: status["step"] >= 4)["trainer"]["pid"]
    began = time.monotonic()
    act(run_dir)
    assert daemon.wait() == 74, daemon.stderr
    assert time.monotonic() - began < PATIENCE_S
    assert is_gone(trainer)
    said = daemon.stderr.splitlines()[-1]
    above = tmp_path if act is move_parent else tmp_path / "above"
    assert ACTS[act].format(above) in said
    assert "training was stopped" in said
    assert ("tolariad run --dir" in said) == (act in (move, move_parent, replace))
    if act is delete:
        assert not run_dir.exists(), "something was written into a folder that somebody deleted"


def test_a_run_that_was_moved_goes_on_at_its_new_place(start, tmp_path):
    """Nothing recorded is lost: every step once, up to the end."""
    run_dir = tmp_path / "run"
    daemon = start(run_dir=run_dir, environ={"FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    move(run_dir)
    assert daemon.wait() == 74, daemon.stderr
    again = start(run_dir=tmp_path / "elsewhere")
    assert again.wait() == 0, again.stderr
    assert [one.step for one in of_type(tmp_path / "elsewhere", m.StepCompleted)] == list(range(1, 31))
    assert of_type(tmp_path / "elsewhere", m.RunCompleted)
    assert verify(tmp_path / "elsewhere" / "journal").verdict is Verdict.CLEAN


def test_no_order_is_acknowledged_into_a_deleted_file(start, run_dir):
    """An order that comes directly after the deletion is not durable, and is not said to be."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    held = run_dir.parent / "held.sock"
    os.link(run_dir / "control.sock", held)
    delete(run_dir)
    daemon.run_dir = held.parent
    held.rename(held.parent / "control.sock")
    with pytest.raises((CallFailed, OSError)):
        daemon.call("Note", text="did it work?")
    assert daemon.wait() == 74, daemon.stderr


@pytest.fixture
def place(tmp_path):
    """The place of a run without a daemon."""
    run_dir = tmp_path / "run"
    for name in ("journal", "checkpoints"):
        (run_dir / name).mkdir(parents=True)
    with begin(Journal.open(run_dir / "journal")) as journal:
        made = RunPlace(run_dir, journal, "`tolariad run --dir {}`")
        yield run_dir, made
        made.close()


def test_a_folder_at_its_place_is_not_lost(place):
    """Also if files in it change, and if its parent may not be searched for a moment."""
    run_dir, made = place
    (run_dir / "journal" / "spare-9.tmp").touch()
    (run_dir / "checkpoints" / "c000001").mkdir()
    assert made.lost() == ""
    run_dir.chmod(0)
    try:
        assert made.lost() == ""
    finally:
        run_dir.chmod(0o755)


def test_another_folder_of_the_same_name_is_not_taken_for_it(place):
    """A folder that was deleted and made again has another inode, although its number might be free."""
    run_dir, made = place
    for _ in range(5):
        (run_dir / "checkpoints").rmdir()
        (run_dir / "checkpoints").mkdir()
        assert "checkpoints was deleted" in made.lost()


def test_the_watch_asks_again_until_it_is_ended(place):
    """A first find may be wrong while a segment is being switched; the kernel decides."""
    run_dir, made = place
    found = []
    watch = PlaceWatch(made, lambda: found.append(made.lost()))
    (run_dir / "checkpoints").rmdir()
    wait_for(lambda: len(found) >= 2)
    watch.close()
