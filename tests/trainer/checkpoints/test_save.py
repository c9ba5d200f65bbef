"""Training continues while a checkpoint is written; its content is the state at its boundary."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from tests.trainer.checkpoints.own import OwnTask, save, step
from tests.waiting import wait_for
from tolariad import run_files
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.storage.export import Weights, export_weights
from tolariad.storage.verify import verify
from tolariad.trainer.checkpoints import save as saving
from tolariad.trainer.checkpoints.buffers import HostBuffer
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.files import MODEL_FILE
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.checkpoints.save import Saver, newest_segment
from tolariad.trainer.checkpoints.snapshot import Position


def order(id_, reason=m.CheckpointReason.ORDERED):
    return m.TakeCheckpoint(id=id_, reason=reason, branch=2)


@pytest.fixture
def slow(monkeypatch):
    """The writer waits before its first piece until `go` is set."""
    gate = SimpleNamespace(go=threading.Event(), there=threading.Event())
    plain = saving._Job.tick

    def tick(job):
        gate.there.set()
        assert gate.go.wait(30)
        plain(job)

    monkeypatch.setattr(saving._Job, "tick", tick)
    yield gate
    gate.go.set()


def finished(saver):
    return wait_for(saver.finished)


def test_steps_made_while_it_is_written_are_not_in_it(tmp_path, made, slow):
    """The files equal those of a checkpoint without training in between; the report has the boundary's position."""
    setup = made()
    step(setup, 1)
    slow.go.set()
    still = save(setup, tmp_path, "still")
    slow.go.clear()
    saver = Saver(setup, tmp_path, "ff")
    saver.order(order("moving"))
    saver.capture(Position(3, 1, 3))
    assert slow.there.wait(30)
    for seed in range(2, 6):
        step(setup, seed)
    setup.task.seen = "other"
    slow.go.set()
    report = finished(saver)
    assert isinstance(report, m.CheckpointWrittenReport)
    assert (report.step, report.batch) == (3, 3)
    assert report.pieces == still.pieces
    assert verify(tmp_path / "moving", report.manifest).branch == 2


def test_an_order_that_comes_while_one_is_written_waits_for_it(tmp_path, made, slow):
    """One at a time, in order; the first is the parent of the second."""
    saver = Saver(made(), tmp_path, "ff")
    for id_ in ("a", "b", "b"):
        saver.order(order(id_))
    saver.capture(Position(0, 1, 0))
    assert not saver.may_capture
    assert saver.finished() is None
    slow.go.set()
    first = finished(saver)
    assert saver.may_capture
    saver.capture(Position(1, 1, 1))
    second = finished(saver)
    assert (first.id, second.id, saver.is_idle) == ("a", "b", True)
    assert verify(tmp_path / "b", second.manifest).parent_checkpoint_id == "a"


def test_the_manifest_records_what_the_order_says_of_the_run(tmp_path, made):
    """Its health, the newest promoted checkpoint and importance. This one is not promoted, and nothing is pruned."""
    saver = Saver(made(), tmp_path, "ff")
    of_run = {"health": m.HealthStatus.DEGRADED, "promoted": "a", "importance": "importance/p000007.safetensors"}
    ordered = m.TakeCheckpoint(id="b", reason=m.CheckpointReason.ORDERED, **of_run)
    saver.order(ordered)
    saver.capture(Position(3, 1, 3))
    manifest = verify(tmp_path / "b", finished(saver).manifest)
    assert manifest.promoted_checkpoint_id == "a"
    assert manifest.importance_ref == "importance/p000007.safetensors"
    assert (manifest.health, manifest.pruning_phase, manifest.promoted_good) == (m.HealthStatus.DEGRADED, 3, False)


def test_what_lies_beyond_the_target_of_a_rollback_is_given_up(tmp_path, made, slow):
    """A write of a later step and pending orders are aborted; a write of the target's own step is finished."""
    saver = Saver(made(), tmp_path, "ff")
    for id_ in ("a", "b"):
        saver.order(order(id_))
    saver.capture(Position(5, 1, 5))
    saver.abort(5, "rolled back")
    assert [saver.finished().id] == ["b"]
    saver.abort(4, "rolled back")
    slow.go.set()
    report = finished(saver)
    assert (report.id, report.why) == ("a", "rolled back")
    assert list(tmp_path.iterdir()) == []


def test_what_was_given_up_when_it_was_all_but_done_is_nobodys_parent(tmp_path, made, monkeypatch):
    """The run rolls back between the last check and the report: the next checkpoint descends from the target."""
    saver = Saver(made(), tmp_path, "ff")
    plain = saving.CheckpointWriter.publish

    def publish(writer):
        plain(writer)
        if not saver.parent:
            saver.parent = "gone-back-to"
            saver.abort(4, "rolled back")

    monkeypatch.setattr(saving.CheckpointWriter, "publish", publish)
    reports = []
    for id_, at in (("a", Position(5, 1, 5)), ("b", Position(4, 1, 4)), ("c", Position(5, 1, 5))):
        saver.order(order(id_))
        saver.capture(at)
        reports.append(finished(saver))
    assert all(isinstance(report, m.CheckpointWrittenReport) for report in reports)
    parents = [verify(tmp_path / report.id, report.manifest).parent_checkpoint_id for report in reports]
    assert parents == ["", "gone-back-to", "b"]


def test_a_trainer_that_ends_leaves_nothing_half_written(tmp_path, made, slow):
    """A checkpoint in flight is removed when the trainer is told to exit."""
    saver = Saver(made(), tmp_path, "ff")
    saver.order(order("a"))
    saver.capture(Position(5, 1, 5))
    slow.go.set()
    saver.close()
    assert not (tmp_path / ".a.partial").exists()


def test_a_write_that_hangs_shows_no_life_and_one_that_moves_does(tmp_path, made, slow):
    """The heartbeat shows the progress of the last checkpoint."""
    saver = Saver(made(), tmp_path, "ff")
    assert saver.moves
    saver.order(order("a"))
    saver.capture(Position(5, 1, 5))
    assert slow.there.wait(30)
    assert not saver.moves
    slow.go.set()
    finished(saver)
    assert saver.moves


def test_a_checkpoint_for_which_there_is_no_room_is_refused_before_the_journal_has_none(tmp_path, made):
    """Nothing is written, and the other checkpoints stay."""
    saver = Saver(made(), tmp_path, "ff", keep_free=lambda: 2**60)
    saver.order(order("a"))
    saver.capture(Position(0, 1, 0))
    report = finished(saver)
    assert isinstance(report, m.CheckpointFailedReport)
    assert "No space left" in report.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["fsync", "write", "rename", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_once_costs_no_checkpoint(tmp_path, made, monkeypatch, name, code):
    """The copy is written again, into new files; the folder is complete and verifies."""
    saver = Saver(made(), tmp_path, "ff")
    target, attribute = (run_files, "open_file") if name == "open" else (Path if name == "rename" else os, name)
    real, failures = getattr(target, attribute), [2]

    def failing(*given, **more):
        if failures[0] and threading.current_thread().name == "checkpoint-writer":
            failures[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(*given, **more)

    monkeypatch.setattr(target, attribute, failing)
    saver.order(order("a"))
    saver.capture(Position(0, 1, 0))
    report = finished(saver)

    assert failures == [0]
    assert isinstance(report, m.CheckpointWrittenReport)
    assert verify(tmp_path / "a", report.manifest).pieces == report.pieces
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_small_checkpoint_fits_on_a_small_disk(tmp_path, made, monkeypatch):
    """150 MB are free, and the journal is in its first segment: it needs three megabytes."""
    free = SimpleNamespace(f_bavail=150_000, f_frsize=1000)
    monkeypatch.setattr("tolariad.trainer.checkpoints.save.os.statvfs", lambda _: free)
    run = tmp_path / "run"
    (run / "journal").mkdir(parents=True)
    (run / "journal" / "00000001-0000000000000001.wal").touch()
    saver = Saver(
        made(), run / "checkpoints", "ff", keep_free=lambda: q.reserve_bytes(newest_segment(run), 100_000_000)
    )
    saver.order(order("a"))
    saver.capture(Position(0, 1, 0))
    assert isinstance(finished(saver), m.CheckpointWrittenReport)
    assert newest_segment(run) == 1
    assert newest_segment(tmp_path) == 0


def test_the_copy_shares_no_memory_with_what_is_trained_and_its_memory_is_used_again(made):
    """One buffer, touched ahead of time, holds every tensor of a copy."""
    setup = made()
    step(setup, 1)
    buffer = HostBuffer()
    live = capture(setup, Position(1, 1, 1))
    buffer.reserve_ahead(live.room)
    buffer.wait()
    assert buffer.size == live.room
    first, second = (live.copied_into(buffer) for _ in range(2))
    places = [
        {n: t.data_ptr() for held in copy.tensors.values() for n, t in held.items()} for copy in (first, second, live)
    ]
    assert places[0] == places[1]
    assert not {p for n, p in places[0].items()} & {p for n, p in places[2].items()}


def test_files_are_no_larger_than_their_limit_and_a_larger_tensor_lies_in_several(tmp_path, made, monkeypatch):
    """Any reader of safetensors opens each file; restored and exported, the tensors are whole."""

    class Long(torch.nn.Linear):
        def __init__(self):
            super().__init__(4, 1500)

    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: Long())
    setup, other = made(), made()
    step(setup, 1)
    saver = Saver(setup, tmp_path, "ff", file_bytes=8192)
    saver.order(order("a"))
    saver.capture(Position(1, 1, 1))
    report = finished(saver)
    names = [piece.name for piece in report.pieces if piece.name.startswith("model")]
    assert names == [MODEL_FILE, *(f"model-00000.{n:03d}.safetensors" for n in range(1, len(names)))]
    assert len(names) > 3
    assert all(piece.size <= 8192 for piece in report.pieces if piece.name.endswith("safetensors"))
    rows = []
    for name in names:
        with safe_open(tmp_path / "a" / name, "pt") as file:
            rows += [file.get_tensor(key) for key in file.keys() if key == "weight"]  # noqa: SIM118 - not a dict
    assert torch.equal(torch.cat(rows).view(1500, 4), setup.model.weight)
    with torch.no_grad():
        other.model.weight.zero_()
    restore(other, load(tmp_path / "a", report.manifest))
    assert torch.equal(other.model.weight, setup.model.weight)
    export_weights(tmp_path / "a", report.manifest, Weights.TRAINED, tmp_path / "out.safetensors")
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("weight"), setup.model.weight)


def test_restoring_fills_the_tensors_that_live_already(tmp_path, made):
    """Parameters and moments keep their memory, so nothing is allocated or adopted."""
    setup = made()
    step(setup, 1)
    report = save(setup, tmp_path)
    moments = {id(v) for state in setup.optimizer.state.values() for v in state.values() if torch.is_tensor(v)}
    step(setup, 2)
    restore(setup, load(tmp_path / "ck", report.manifest))
    after = {id(v) for state in setup.optimizer.state.values() for v in state.values() if torch.is_tensor(v)}
    assert after == moments
    assert save(setup, tmp_path, "again").pieces == report.pieces
