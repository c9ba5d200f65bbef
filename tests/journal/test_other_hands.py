"""Links, FIFOs, devices and files of a terabyte in place of a segment are refused by name at once."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journal import Files, Journal, JournalDamaged, Reader, plan_repair, summarize, verify
from journal.errors import Damage
from journal.files import NotAFile
from journal.packing import Packer
from tests.journal.make import begin, commit, event

SEGMENT = 16 * 4096
# Usually milliseconds; a terabyte takes an hour to read, and a FIFO for ever.
LIMIT_S = 30.0


@pytest.fixture
def journal(tmp_path) -> Path:
    """Return a journal of three segments, closed in order."""
    folder = tmp_path / "journal"
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as opened:
        for n in range(24):
            commit(opened, [event(n)])
    return folder


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def device(path: Path) -> None:
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: it can be read for ever
    except PermissionError:
        pytest.skip("making a device takes root")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def terabyte(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


READERS: dict[str, Callable[[Path], object]] = {
    "reading": lambda folder: [list(Reader(folder))],
    "summarize": summarize,
    "opening": lambda folder: Journal.open(folder, segment_bytes=SEGMENT),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("place", [0, -1], ids=["the first", "the newest"])
@pytest.mark.parametrize(
    ("put", "said"),
    [
        (fifo, "a FIFO"),
        (link, "a symbolic link"),
        (device, "a device"),
        (folder, "a folder"),
    ],
)
def test_what_is_no_file_is_named_by_every_reader(journal, put, said, place, packed):
    """Verify, readers, figures, a repair's plan and opening name it; none of them waits for it."""
    if packed:
        Packer(Files(), journal, pause_s=0).pack_all()
    path = sorted(journal.glob("*.wal*"))[place]
    put(path)
    began = time.monotonic()
    problem = verify(journal).problem
    assert problem is not None
    assert (problem.damage, path.name in problem.sentence) == (Damage.MISPLACED, True)
    assert said in problem.sentence
    assert said in plan_repair(journal).sentence
    for read in READERS.values():
        with pytest.raises(JournalDamaged, match=said) as refused:
            read(journal)
        assert refused.value.path == path
    assert time.monotonic() - began < LIMIT_S * len(READERS)


@pytest.mark.parametrize("place", [0, 1, -1], ids=["the first", "a middle one", "the newest"])
def test_a_segment_of_a_terabyte_of_holes_is_named_at_once(journal, place):
    """A file with holes costs nothing to create and would take an hour to read."""
    path = sorted(journal.glob("*.wal"))[place]
    terabyte(path)
    began = time.monotonic()
    problem = verify(journal).problem
    assert problem is not None
    assert (problem.damage, path.name in problem.sentence) == (Damage.LENGTH, True)
    plan_repair(journal)
    assert time.monotonic() - began < LIMIT_S
    with pytest.raises(JournalDamaged, match=path.name):
        Journal.open(journal, segment_bytes=SEGMENT)
    assert time.monotonic() - began < 2 * LIMIT_S


def test_a_terabyte_of_holes_alone_is_named_at_once(journal):
    """With the name of a packed and of a plain segment."""
    for name in ("00000001-0000000000000001.wal", "00000001-0000000000000001.wal.zst"):
        for path in journal.glob("*.wal*"):
            path.unlink()
        (journal / name).touch()
        terabyte(journal / name)
        began = time.monotonic()
        problem = verify(journal).problem
        assert problem is not None
        assert time.monotonic() - began < LIMIT_S


def test_a_lock_that_is_a_link_is_not_followed(journal, tmp_path):
    """The link's target is neither created nor locked."""
    (journal / "lock").unlink()
    (journal / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(NotAFile, match="symbolic link"):
        Journal.open(journal, segment_bytes=SEGMENT)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("umask", [0, 0o077])
def test_modes_are_the_same_whatever_the_umask(tmp_path, umask):
    """0640 for segments, spares, packed segments and the lock; 0750 for the folder."""
    before = os.umask(umask)
    try:
        with begin(Journal.open(tmp_path / "journal", segment_bytes=SEGMENT)) as opened:
            for n in range(24):
                commit(opened, [event(n)])
            opened.prepare_spare()
            Packer(Files(), tmp_path / "journal", pause_s=0).pack_all()
            found = {path.suffix: path.stat().st_mode & 0o7777 for path in (tmp_path / "journal").iterdir()}
    finally:
        os.umask(before)

    assert found == dict.fromkeys((".wal", ".zst", ".tmp", ""), 0o640)
    assert (tmp_path / "journal").stat().st_mode & 0o7777 == 0o750
