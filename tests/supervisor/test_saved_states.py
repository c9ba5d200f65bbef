"""The effects on saved states: removals in order, each with an answer; a snapshot's arena beside them."""

from __future__ import annotations

import os
import queue
from pathlib import Path

from tests.storage.test_remove import stored
from tolariad.core import messages as m
from tolariad.storage import held
from tolariad.supervisor.saved_states import SavedStates


def test_the_arena_is_prepared_beside_the_removals(tmp_path):
    """An order for the arena gives the descriptor its size, and its result comes as an input."""
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    saved = SavedStates(tmp_path, told.put)
    assert os.fstat(saved.arena).st_size == 0
    saved.obey(m.PrepareRing(slots=2, slot_bytes=4096, memory=1 << 20))

    assert told.get(timeout=20) == m.RingPrepared(slots=2, slot_bytes=4096)
    assert os.fstat(saved.arena).st_size == 8192
    saved.close()


def test_removals_are_done_in_their_order_and_each_is_answered(tmp_path, monkeypatch):
    """The answer is: removed, in use, or an error in words. Closing waits for pending removals."""
    for name in ("c000001", "c000002", "c000003"):
        stored(tmp_path, name)
    told: list[m.CheckpointRemoved] = []
    saved = SavedStates(tmp_path, told.append)
    with held(tmp_path / "c000002"):
        saved.obey(m.SweepCheckpoints(committed=("c000001", "c000002"), highest=3))
        saved.obey(m.DeleteCheckpoint(id="c000001"))
        saved.obey(m.DeleteCheckpoint(id="c000002"))
        saved.close()
    assert told == [
        m.CheckpointRemoved(id="c000001", freed=112),
        m.CheckpointRemoved(id="c000002", error="checkpoint c000002 is being read"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["c000002"]

    def refused(*_):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "rename", refused)
    saved = SavedStates(tmp_path, told.append)
    saved.obey(m.DeleteCheckpoint(id="c000002"))
    saved.close()
    assert told[-1] == m.CheckpointRemoved(id="c000002", error="cannot be removed: Permission denied")


def test_a_sweep_removes_the_importance_that_no_event_names_and_touches_nothing_else(tmp_path):
    """A daemon was killed between an event and the removal of its file. A newer analysis may be writing already."""
    folder = tmp_path / "importance"
    folder.mkdir()
    for name in ("p000001.safetensors", "p000002.safetensors", "p000004.safetensors", "p1.txt", ".p000002.new"):
        (folder / name).write_bytes(b"")
    saved = SavedStates(tmp_path / "checkpoints", lambda _: None)
    saved.obey(m.SweepImportance(kept=("importance/p000002.safetensors",), highest=3))
    saved.close()

    left = {path.name for path in folder.iterdir()}
    assert left == {"p000002.safetensors", "p000004.safetensors", "p1.txt", ".p000002.new"}
