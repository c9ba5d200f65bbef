"""Removing checkpoints: completely or not yet, never during a read, and no foreign files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tolariad.storage import held
from tolariad.storage.remove import InUse, remove, sweep


def stored(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir()
    for file, size in (("manifest.json", 5), ("model-00000.safetensors", 100), ("importance-00000.safetensors", 7)):
        (folder / file).write_bytes(b"x" * size)
    return folder


def test_a_checkpoint_that_is_read_is_not_removed(tmp_path):
    """The reader finishes first. Then it is removed, and the freed bytes are returned."""
    stored(tmp_path, "c000001")
    with held(tmp_path / "c000001"):
        with pytest.raises(InUse, match="c000001 is being read"):
            remove(tmp_path, "c000001")
        assert len(list((tmp_path / "c000001").iterdir())) == 3
    assert remove(tmp_path, "c000001") == 112
    assert list(tmp_path.iterdir()) == []
    assert remove(tmp_path, "c000001") == 0


def test_a_removal_that_was_cut_short_is_finished_and_never_looks_like_a_checkpoint(tmp_path, monkeypatch):
    """The name is removed first, durably. The next attempt removes the rest and counts its bytes."""
    stored(tmp_path, "c000001")

    def cut(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", cut)
    with pytest.raises(OSError, match="Input"):
        remove(tmp_path, "c000001")
    assert [path.name for path in tmp_path.iterdir()] == [".c000001.removed"]
    monkeypatch.undo()
    assert remove(tmp_path, "c000001") == 112
    assert list(tmp_path.iterdir()) == []


def test_the_sweep_takes_what_is_nobodys_and_leaves_everything_else(tmp_path):
    """Half written, half removed and uncommitted folders go; committed, newer and foreign ones stay."""
    for name in ("c000001", ".c000002.partial", "c000003", ".c000004.removed", "c000009", ".c000009.partial", "mine"):
        stored(tmp_path, name)
    (tmp_path / "c000005").write_bytes(b"a file")
    removed = sweep(tmp_path, ["c000001"], highest=5)
    assert removed == [".c000002.partial", ".c000004.removed", "c000003"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"c000001", "c000005", "c000009", ".c000009.partial", "mine"}


def test_a_folder_that_a_new_trainer_removes_meanwhile_is_no_error(tmp_path, monkeypatch):
    """Daemon and trainer both tidy up at a start; whoever comes second finds nothing."""
    stored(tmp_path, ".c000002.partial")
    unlink = os.unlink

    def raced(name, **where):
        unlink(name, **where)
        raise FileNotFoundError(2, "No such file or directory", name)

    monkeypatch.setattr(os, "unlink", raced)
    assert sweep(tmp_path, [], highest=5) == [".c000002.partial"]
    assert list(tmp_path.iterdir()) == []


def test_of_a_checkpoint_that_somebody_has_moved_and_linked_the_name_goes(tmp_path):
    """The moved data belongs to the user. The link must not stop later removals."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "checkpoints"
    elsewhere.mkdir()
    root.mkdir()
    for name in ("c000001", "c000002"):
        (root / name).symlink_to(stored(elsewhere, name))
    stored(root, "c000003")

    assert remove(root, "c000001") == 0
    assert sweep(root, [], highest=3) == ["c000002", "c000003"]
    assert list(root.iterdir()) == []
    assert [len(list((elsewhere / name).iterdir())) for name in ("c000001", "c000002")] == [3, 3]
