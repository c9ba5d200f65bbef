"""A checkpoint's folder appears complete, or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from blake3 import blake3

from tolariad.core.calc.checkpoints.pacing import Pacing
from tolariad.storage import (
    CheckpointUnusable,
    CheckpointWriter,
    Manifest,
    map_piece,
    read_manifest,
    remove_partial,
    write,
)
from tolariad.storage.pace import AdaptivePace, Pace
from tolariad.storage.verify import verify
from tolariad.storage.write import write_all


def manifest_of(id_="a"):
    return Manifest(
        checkpoint_id=id_,
        training_run_id="00ff",
        parent_checkpoint_id="",
        created_ns=1,
        reason="ordered",
        epoch=1,
        batch=2,
        global_step=2,
        model_hash="ab",
        chunks=(),
        aliases={"head.weight": "embedding.weight"},
    )


@pytest.fixture
def written(tmp_path):
    """A published checkpoint `a` with two pieces: its folder and its manifest's hash."""
    with CheckpointWriter(tmp_path, "a") as writer:
        writer.add("one.safetensors", [b"head", memoryview(b"tensor")])
        writer.add("two.msgpack", [b""])
        hash_, _ = writer.write_manifest(manifest_of())
        writer.publish()
    return tmp_path / "a", hash_


def test_what_was_written_verifies(written):
    """Every piece comes back with the size and hash that the manifest gives."""
    folder, hash_ = written
    manifest = verify(folder, hash_)
    assert manifest == read_manifest(folder, hash_)
    assert [bytes(map_piece(folder, piece)) for piece in manifest.pieces] == [b"headtensor", b""]
    assert manifest.pieces[0].blake3 == blake3(b"headtensor").hexdigest()
    assert manifest.size == 10


def test_nothing_is_left_of_a_checkpoint_that_was_not_published(tmp_path):
    """Leaving early, by an error or otherwise, removes all files; the final name never existed."""
    writer = CheckpointWriter(tmp_path, "a")
    with writer:
        writer.add("one", [b"x"])
        assert list(tmp_path.iterdir()) == [tmp_path / ".a.partial"]
    assert list(tmp_path.iterdir()) == []


def test_remains_of_a_dead_trainer_give_way(tmp_path):
    """A partial folder of the same id, or an uncommitted one, is removed."""
    for name in (".a.partial", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one").write_bytes(b"old")
    with CheckpointWriter(tmp_path, "a") as writer:
        writer.add("one", [b"new"])
        writer.write_manifest(manifest_of())
        writer.publish()
    assert (tmp_path / "a" / "one").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_name_that_could_not_be_made_durable_is_taken_back(tmp_path, monkeypatch):
    """A checkpoint that was reported as failed must not be found later."""
    with CheckpointWriter(tmp_path, "a") as writer:
        writer.write_manifest(manifest_of())

        def broken(_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("tolariad.storage.write.sync_folder", broken)
        with pytest.raises(OSError, match="Input"):
            writer.publish()
    assert list(tmp_path.iterdir()) == []


def test_what_dead_trainers_left_is_removed_by_the_next(tmp_path):
    """Only half written folders are removed; complete ones stay."""
    for name in (".a.partial", "b", ".keep"):
        (tmp_path / name).mkdir()
    assert remove_partial(tmp_path) == [".a.partial"]
    assert {path.name for path in tmp_path.iterdir()} == {"b", ".keep"}


def test_files_are_synced_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    """Order: data, manifest, folder, rename, parent folder."""
    seen = []

    def spy(descriptor):
        seen.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", spy)
    with CheckpointWriter(tmp_path, "a") as writer:
        writer.add("one", [b"x"])
        writer.write_manifest(manifest_of())
        assert not (tmp_path / "a").exists()
        writer.publish()
    partial = f"{tmp_path}/.a.partial"
    assert seen == [f"{partial}/one", f"{partial}/manifest.json", partial, str(tmp_path)]


@pytest.mark.parametrize("id_", ["", ".hidden", "../up", "a/b"])
def test_an_id_that_leaves_its_folder_is_refused(tmp_path, id_):
    """A checkpoint's id is a plain name."""
    with pytest.raises(ValueError, match="name of a checkpoint"):
        CheckpointWriter(tmp_path, id_)


def test_damage_is_named_by_file_and_kind(written):
    """A flipped bit, a cut file, a missing file and another manifest are refused with the reason."""
    folder, hash_ = written
    piece = folder / "one.safetensors"
    for damaged, why in ((b"headtensoR", "BLAKE3"), (b"head", "has 4 bytes"), (None, "cannot be read")):
        piece.unlink(missing_ok=True)
        if damaged is not None:
            piece.write_bytes(damaged)
        with pytest.raises(CheckpointUnusable, match=why) as caught:
            verify(folder, hash_)
        assert caught.value.file == "one.safetensors"
        with pytest.raises(CheckpointUnusable, match=why):
            map_piece(folder, read_manifest(folder, hash_).pieces[0])
    with pytest.raises(CheckpointUnusable, match="the journal says") as caught:
        verify(folder, "00")
    assert caught.value.file == "manifest.json"


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path):
    """If the run's folder was moved or removed, a checkpoint must not create it again."""
    with pytest.raises(FileNotFoundError), CheckpointWriter(tmp_path / "gone" / "checkpoints", "a"):
        raise AssertionError("nothing may be written")
    assert list(tmp_path.iterdir()) == []


class Quiet:
    """Nothing is beside the checkpoint."""

    begin = note = lambda self: None
    seen = lambda self, size: None  # noqa: E731


PACES = [
    Pace(None),
    Pace(1e12),
    *(AdaptivePace(Pacing(one), Quiet(), lambda _: None, lambda: None) for one in (1e8, 1e12)),
]


@pytest.mark.parametrize("pace", PACES)
def test_pieces_end_where_large_pages_do(tmp_path, monkeypatch, pace):
    """For any length of the header, and the written bytes are the given ones."""
    ends, step = [], pace.piece_bytes
    chunks = [b"h" * 4_321, os.urandom(2 * step + 99), b"", os.urandom(step)]

    def note(descriptor, part):
        write_all(descriptor, part)
        ends.append(os.lseek(descriptor, 0, os.SEEK_CUR))

    monkeypatch.setattr(write, "write_all", note)
    with CheckpointWriter(tmp_path / "checkpoints", "c000001", pace) as writer:
        piece = writer.add("data", chunks)
        assert (tmp_path / "checkpoints" / ".c000001.partial" / "data").read_bytes() == b"".join(chunks)

    assert ends == [4_321, step, 2 * step, 2 * step + 4_420, 3 * step, 3 * step + 4_420]
    assert step % (2 << 20) == 0
    assert piece.blake3 == blake3(b"".join(chunks)).hexdigest()


@pytest.mark.parametrize("umask", [0, 0o077])
def test_modes_of_a_checkpoint_are_the_same_whatever_the_umask(tmp_path, umask):
    """0640 for each file and 0750 for each folder, also for the root of all checkpoints."""
    before = os.umask(umask)
    try:
        with CheckpointWriter(tmp_path / "checkpoints", "a") as writer:
            writer.add("model.bin", [b"head"])
            writer.write_manifest(manifest_of())
            writer.publish()
    finally:
        os.umask(before)

    found = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "checkpoints").rglob("*")}
    assert found == {"a": 0o750, "model.bin": 0o640, "manifest.json": 0o640}
    assert (tmp_path / "checkpoints").stat().st_mode & 0o7777 == 0o750


def make_link(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_terabyte(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def link_folder(path: Path) -> None:
    path.parent.rename(path.parents[2] / "elsewhere")
    path.parent.symlink_to(path.parents[2] / "elsewhere")


@pytest.mark.parametrize("name", ["manifest.json", "model.bin"])
@pytest.mark.parametrize(
    ("put", "said"),
    [
        (make_link, "is a symbolic link"),
        (make_fifo, "is a FIFO"),
        (make_terabyte, r"has 1099511627776 bytes"),
        (link_folder, "is a folder|is a symbolic link"),
    ],
)
def test_what_is_no_file_of_the_checkpoint_is_named_at_once(tmp_path, name, put, said):
    """A link, a FIFO, a terabyte of holes and a linked folder are named within a second, in verify and export."""
    root = tmp_path / "checkpoints"
    with CheckpointWriter(root, "a") as writer:
        writer.add("model.bin", [b"head"])
        hash_, _ = writer.write_manifest(manifest_of())
        writer.publish()
    put(root / "a" / name)
    began = time.monotonic()
    with pytest.raises(CheckpointUnusable, match=said):
        verify(root / "a", hash_)
    # A terabyte takes an hour to read, and a FIFO for ever.
    assert time.monotonic() - began < 30
