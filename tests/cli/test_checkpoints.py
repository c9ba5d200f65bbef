"""`tolaria checkpoints` lists the checkpoints in the journal, and whether they are on disk."""

from __future__ import annotations

import shutil

import pytest

from tests.cli.stored import StoringRecorder, record
from tests.control.fakes import Recorder
from tolariad.core import messages as m


@pytest.fixture
def run(run_dir):
    return record(run_dir)


def test_the_catalogue_is_listed_oldest_first(tolaria, run):
    """As a table, and as JSON lines with the journal's own fields."""
    table = tolaria("checkpoints", run)
    lines = [line.split() for line in table.out.splitlines()]
    rows = tolaria("checkpoints", run, "--json").lines

    assert (table.code, table.err) == (0, "")
    assert [line[:3] for line in lines[1:]] == [["c000001", "start", "0"], ["c000002", "epoch", "10"]]
    assert [line[-2:] for line in lines[1:]] == [["on", "disk"]] * 2
    assert [(row["id"], row["step"], row["present"], row["verified"], row["rejected"]) for row in rows] == [
        ("c000001", 0, True, None, False),
        ("c000002", 10, True, None, False),
    ]
    assert [row["pinned"] for row in rows] == ["start", "last good"]
    assert rows[0]["time"].startswith("2026-11-21T07:00")
    size = sum(path.stat().st_size for path in (run / "checkpoints" / "c000001").glob("*.safetensors"))
    assert rows[0]["size"] == size > 0


def test_verify_is_exit_0_where_every_byte_is_as_written(tolaria, run):
    """Each is marked in the table."""
    said = tolaria("checkpoints", run, "--verify")

    assert (said.code, said.err) == (0, "")
    assert said.out.count("verified") == 2


def test_what_is_damaged_or_gone_is_exit_1_by_name(tolaria, run):
    """A damaged one gives the file and both hashes; a missing one says so. Without --verify nothing is read."""
    shutil.rmtree(run / "checkpoints" / "c000001")
    damaged = run / "checkpoints" / "c000002" / "model-00000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    said = tolaria("checkpoints", run, "--verify")
    rows = tolaria("checkpoints", run, "--verify", "--json").lines
    looked = tolaria("checkpoints", run)

    assert said.code == 1
    assert [line.split()[-1] for line in said.out.splitlines()[1:]] == ["missing", "damaged"]
    assert "c000002: model-00000.safetensors: its BLAKE3 is" in said.err
    assert [(row["present"], row["verified"]) for row in rows] == [(False, False), (True, False)]
    assert (looked.code, "on disk" in looked.out) == (0, True)


def test_a_rejected_checkpoint_is_no_news(tolaria, run_dir):
    """The journal has it as rejected: it is listed so, and the exit code is 0."""
    recorder = StoringRecorder(run_dir / "journal", segment_bytes=1 << 20)
    recorder.begin_run()
    for _ in range(12):
        recorder.step()
    recorder.spawn_trainer()
    recorder.report(m.CheckpointUnusableReport(id="c000002", file="manifest.json", why="cannot be read"))
    recorder.journal.close()
    shutil.rmtree(run_dir / "checkpoints" / "c000002")
    said = tolaria("checkpoints", run_dir, "--verify")

    assert said.code == 0
    assert "rejected, missing" in said.out


def test_one_in_quarantine_says_so(tolaria, run_dir):
    """It shows the quarantine entry that excludes it as a rollback target."""
    recorder = StoringRecorder(run_dir / "journal", segment_bytes=1 << 20)
    recorder.begin_run()
    for _ in range(12):
        recorder.step()
    recorder.take(m.CommandReceived(command=m.QuarantineAdd(checkpoint="c000002"), actor=m.Actor()))
    recorder.journal.close()
    table = tolaria("checkpoints", run_dir).out.splitlines()
    rows = tolaria("checkpoints", run_dir, "--json").lines

    assert ["in quarantine (q0001)" in line for line in table] == [False, False, True]
    assert [row["quarantined"] for row in rows] == [None, "q0001"]


def test_a_run_without_checkpoints_says_so(tolaria, run_dir):
    """On stderr; the list is empty."""
    empty = Recorder(run_dir.parent / "empty" / "journal", segment_bytes=1 << 20)
    empty.write_checkpoint = lambda: None
    empty.begin_run()
    empty.journal.close()
    said = tolaria("checkpoints", run_dir.parent / "empty")

    assert (said.code, said.out) == (0, "")
    assert "no checkpoint yet" in said.err


def test_those_that_healthy_steps_came_after_are_promoted(tolaria, run_dir):
    """After 32 healthy steps (`snapshots.watch_steps`): those of steps 0 and 10, but not the third, with fewer steps
    after it.
    """
    recorder = StoringRecorder(run_dir / "journal", segment_bytes=1 << 20)
    recorder.begin_run()
    for _ in range(45):
        recorder.step()
    recorder.journal.close()
    rows = {row["step"]: row for row in tolaria("checkpoints", run_dir, "--json").lines}
    table = tolaria("checkpoints", run_dir).out.splitlines()[1:]

    assert {step: row["promoted"] for step, row in rows.items()} == {0: True, 10: True, 20: False}
    assert ["promoted" in line.partition("kept")[0] for line in table] == [row["promoted"] for row in rows.values()]
    assert rows[10]["pinned"] == "promoted"
