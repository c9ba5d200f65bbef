"""Writes past the page cache: used if they work, else replaced by ordinary ones with the same promises."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from journal import Files, Journal, Verdict, verify
from tests.journal.make import begin, commit, event, numbered, read_all

SEGMENT = 16 * 4096


class Watching(Files):
    """Records which writes were direct, and refuses on demand."""

    def __init__(self, refuse_flag: int = 0, refuse_write: int = 0, block: int = 512) -> None:
        self.refuse_flag, self.refuse_write, self.block = refuse_flag, refuse_write, block
        self.direct: list[bool] = []

    def make_direct(self, descriptor, block):
        if self.refuse_flag:
            raise OSError(self.refuse_flag, os.strerror(self.refuse_flag))
        super().make_direct(descriptor, block)

    def block_bytes(self, folder):
        return self.block

    def pwrite(self, descriptor, data, offset):
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        if is_direct and self.refuse_write and len(self.direct) >= self.refuse_write:
            raise OSError(errno.EINVAL, "not a multiple of the block")
        self.direct.append(is_direct)
        return super().pwrite(descriptor, data, offset)


def works_here(folder) -> bool:
    with begin(Journal.open(folder / "probe", segment_bytes=SEGMENT)) as journal:
        return journal.statistics().direct


def test_frames_are_written_past_the_page_cache_where_that_works(tmp_path):
    """Every frame, over rotations and after a new start, is direct and comes back as written."""
    if not works_here(tmp_path):
        pytest.skip("this file system has no O_DIRECT")
    files, folder, written = Watching(), tmp_path / "journal", [event(n, size=n * 50) for n in range(60)]
    for half in (written[:30], written[30:]):
        with begin(Journal.open(folder, segment_bytes=SEGMENT, files=files)) as journal:
            files.direct.clear()
            for one in half:
                commit(journal, [one])
            assert journal.statistics().direct
            assert journal.statistics().direct_refused is None
            # Spares are made on the way; their first piece is all there is of such short ones.
            assert files.direct.count(True) >= len(half)

    assert read_all(folder, Files()) == (numbered(written), None)
    assert verify(folder).verdict is Verdict.CLEAN


def test_where_it_does_not_work_the_reason_is_told_and_everything_else_is_the_same(tmp_path):
    """If the file system refuses the flag, writes use the page cache and `statistics` gives the reason."""
    files = Watching(refuse_flag=errno.EINVAL)
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files)) as journal:
        commit(journal, [event(1)])
        found = journal.statistics()

    assert (found.direct, set(files.direct)) == (False, {False})
    assert "Invalid argument" in str(found.direct_refused)
    assert read_all(tmp_path, Files()) == (numbered([event(1)]), None)


def test_a_file_system_that_takes_the_flag_and_refuses_the_write_costs_one_segment(tmp_path):
    """The batch goes to the next segment through the page cache. No acknowledged event is lost, and nothing freezes."""
    if not works_here(tmp_path):
        pytest.skip("this file system has no O_DIRECT")
    files, folder, written = Watching(refuse_write=8), tmp_path / "journal", [event(n) for n in range(20)]
    with begin(Journal.open(folder, segment_bytes=SEGMENT, files=files)) as journal:
        for one in written:
            commit(journal, [one])
        found = journal.statistics()

    assert (found.poisoned, found.failed, found.direct) == (1, None, False)
    assert "not a multiple" in str(found.direct_refused)
    assert read_all(folder, Files()) == (numbered(written), None)


def test_what_a_longer_frame_left_in_the_buffer_is_not_written_again(tmp_path):
    """The buffer is reused: after a short frame the padding is zero, as verify requires."""
    with begin(Journal.open(tmp_path, segment_bytes=64 * 4096)) as journal:
        for size in (20_000, 10, 5_000, 0, 100_000, 1):
            commit(journal, [event(size, size=size)])

    assert verify(tmp_path).verdict is Verdict.CLEAN


@pytest.mark.parametrize(("block", "alignment"), [(512, 4096), (4096, 4096), (16_384, 16_384), (1 << 20, 65_536)])
def test_new_segments_are_aligned_to_the_devices_block(tmp_path, block, alignment):
    """4096 bytes, or the logical block if it is larger, up to the format's limit."""
    with begin(Journal.open(tmp_path, segment_bytes=16 * 65_536, files=Watching(block=block))) as journal:
        commit(journal, [event(0)])
        assert journal.statistics().segment_offset % alignment == 0
    (path,) = tmp_path.glob("*.wal")

    assert int.from_bytes(path.read_bytes()[20:24], "little") == alignment


def test_the_block_of_a_folder_that_is_not_there_yet_is_its_parents(tmp_path):
    """A journal is opened before its folder exists."""
    assert Files().block_bytes(tmp_path / "not" / "yet") == Files().block_bytes(tmp_path)
    assert Files().block_bytes(tmp_path) >= 512
