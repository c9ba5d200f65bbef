"""Faults in files of checkpoints: refused by name, an older good one is used, nothing is half loaded."""

from __future__ import annotations

import errno
import os
import shutil
import sys

import pytest
import torch

from tests.trainer.checkpoints.own import save, step
from tolariad.core import messages as m
from tolariad.storage import CheckpointUnusable
from tolariad.storage.remove import InUse, remove
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.checkpoints.snapshot import Position

FILES = (
    "manifest.json",
    "model-00000.safetensors",
    "optimizer-00000.safetensors",
    "state-00000.safetensors",
    "state-00000.msgpack",
)


def flipped(path, other, monkeypatch):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncated(path, other, monkeypatch):
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path, other, monkeypatch):
    path.write_bytes(b"")


def extended(path, other, monkeypatch):
    path.write_bytes(path.read_bytes() + b"\0")


def missing(path, other, monkeypatch):
    path.unlink()


def swapped(path, other, monkeypatch):
    shutil.copyfile(other / path.name, path)


def linked(path, other, monkeypatch):
    path.unlink()
    path.symlink_to(other / path.name)


def made_a_folder(path, other, monkeypatch):
    path.unlink()
    path.mkdir()


def made_a_pipe(path, other, monkeypatch):
    path.unlink()
    os.mkfifo(path)


def given_away(path, other, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


def unreadable(path, other, monkeypatch):
    """Every read of this file fails with EIO."""
    inode = path.stat().st_ino
    plain = os.pread

    def broken(descriptor, count, offset):
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(descriptor, count, offset)

    def not_mapped(*_):
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    monkeypatch.setattr(os, "pread", broken)
    # A mapping whose pages cannot be read says EFAULT when it is filled: reading the file then tells why.
    monkeypatch.setattr(sys.modules["tolariad.storage.verify"], "_madvise", not_mapped)


FAULTS = {
    flipped: "BLAKE3",
    truncated: "bytes|BLAKE3",
    emptied: "0 bytes|BLAKE3",
    extended: "bytes|BLAKE3",
    missing: "cannot be read: No such file",
    swapped: "BLAKE3|bytes",
    linked: "is a symbolic link",
    made_a_folder: "is a folder",
    made_a_pipe: "is a FIFO",
    given_away: "belongs to user 12345",
    unreadable: "cannot be read: Input/output error",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory, configured):
    """Two checkpoints of one run, and the reports of both."""
    from tests.trainer.checkpoints.own import OwnTask
    from tolariad.trainer import build
    from tolariad.trainer.tasks import task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "find_task", lambda _: task.FoundTask(OwnTask(), ""))
        one = build.build(configured("digits", epochs=1))
    root = tmp_path_factory.mktemp("pair")
    step(one, 1)
    reports = [save(one, root, "c000001", Position(1, 1, 1))]
    step(one, 2)
    one.task.seen = "something else"
    torch.rand(1)
    reports.append(save(one, root, "c000002", Position(2, 1, 2)))
    return root, reports


@pytest.mark.sample(14)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_of_every_file_is_refused_by_name_and_nothing_is_half_loaded(
    tmp_path, made, monkeypatch, pair, file, fault
):
    """The report names file and fault; the run's state is unchanged, and the older checkpoint is used."""
    root, (older, newer) = pair
    shutil.copytree(root, tmp_path / "run")
    folder = tmp_path / "run"
    setup = made()
    step(setup, 9)
    before = capture(setup, Position(0, 1, 0)).copied_into(_fresh())
    fault(folder / newer.id / file, folder / older.id, monkeypatch)
    with pytest.raises(CheckpointUnusable, match=FAULTS[fault]) as caught:
        restore(setup, load(folder / newer.id, newer.manifest))
    assert caught.value.file == file
    assert same(before, capture(setup, Position(0, 1, 0)))
    assert restore(setup, load(folder / older.id, older.manifest)) == Position(1, 1, 1)
    assert save(setup, folder, "again", Position(1, 1, 1)).pieces == older.pieces


def test_a_whole_checkpoint_under_anothers_name_is_refused(tmp_path, made, pair):
    """Every file verifies by its own manifest, but the journal has the hash of another manifest."""
    root, (older, newer) = pair
    shutil.copytree(root / older.id, tmp_path / newer.id)
    setup = made()
    before = capture(setup, Position(0, 1, 0)).copied_into(_fresh())
    with pytest.raises(CheckpointUnusable, match="the journal says") as caught:
        restore(setup, load(tmp_path / newer.id, newer.manifest))

    assert caught.value.file == "manifest.json"
    assert same(before, capture(setup, Position(0, 1, 0)))


def test_what_is_being_read_is_not_removed_and_what_was_read_outlives_its_files(tmp_path, made, pair):
    """The folder is locked from the manifest's first byte to the last piece; then it may be deleted, and the restore
    works.
    """
    root, (_, newer) = pair
    shutil.copytree(root / newer.id, tmp_path / newer.id)
    refused = []

    def each():
        with pytest.raises(InUse):
            remove(tmp_path, newer.id)
        refused.append(1)

    found = load(tmp_path / newer.id, newer.manifest, each)
    assert len(refused) >= len(newer.pieces)
    assert remove(tmp_path, newer.id) > 0
    setup = made()
    assert restore(setup, found) == Position(2, 1, 2)
    assert save(setup, tmp_path, "again", Position(2, 1, 2)).pieces == newer.pieces


def _fresh():
    from tolariad.trainer.checkpoints.buffers import HostBuffer

    return HostBuffer()


def same(one, other):
    """Equal bit for bit, in tensors and all other state."""
    return one.state == other.state and all(
        torch.equal(tensor, other.tensors[group][name])
        for group, held in one.tensors.items()
        for name, tensor in held.items()
    )


def test_a_trainer_takes_the_older_one_and_says_which_it_refused(daemon_in, configured):
    """Of three checkpoints the newest two are damaged: each is reported with its file, and training starts from the
    third.
    """
    daemon = daemon_in("run", 3)
    configuration = configured("digits", epochs=3)
    daemon.exit_after_step = 60
    daemon.train_here(configuration)
    ids = [report.id for report in daemon.committed]
    assert len(ids) >= 3
    folder = daemon.run_dir / "checkpoints"
    (folder / ids[-1] / "model-00000.safetensors").write_bytes(b"")
    (folder / ids[-2] / "manifest.json").unlink()
    seen = len(daemon.reports)
    daemon.train_here(configuration)
    refused = [(r.id, r.file) for r in daemon.reports[seen:] if isinstance(r, m.CheckpointUnusableReport)]
    assert refused == [(ids[-1], "model-00000.safetensors"), (ids[-2], "manifest.json")]
    started = next(r for r in daemon.reports[seen:] if isinstance(r, m.TrainingStartedReport))
    assert started.checkpoint == ids[-3]
    assert daemon.ended
