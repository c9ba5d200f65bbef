"""A sealed segment without a successor, as a crash leaves it: no frame is ever written after the seal."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal import Files, FrameKind, Journal, Reader, Tabulation, Verdict, verify
from journal.segment import SegmentView, Walk, list_segments
from tests.journal.make import begin, commit, event, numbered, read_all

SEGMENT = 24 * 4096
TABLE = Tabulation((("at", "Q"),), lambda _event: (1,))


class Stopped(BaseException):
    """The process is killed at this point."""


def sealed(folder: Path, tabulation: Tabulation | None) -> list[bytes]:
    """A journal whose first segment was sealed early, because a large batch did not fit."""

    def die_there(point: str) -> None:
        if point == "rotation_head" and journal.last_seq:
            raise Stopped

    journal = Journal.open(folder, segment_bytes=SEGMENT, reached=die_there, tabulation=tabulation)
    begin(journal)
    commit(journal, [event(0)])
    with pytest.raises(Stopped):
        commit(journal, [event(1, size=SEGMENT)])
    journal.close()
    return [event(0)]


def kinds(folder: Path, number: int) -> list[int]:
    """Return the kinds of a segment's frames."""
    view = SegmentView(Files(), list_segments(Files(), folder)[number])
    found = [frame.header.kind for frame in Walk(view)]
    view.close()
    return found


@pytest.mark.parametrize("tabulation", [None, TABLE], ids=["plain", "with a table"])
def test_what_comes_next_goes_into_the_next_segment_and_there_is_one_seal(tmp_path, tabulation):
    """Even if the sealed segment has room: readers take a seal for the end of its segment."""
    written = sealed(tmp_path, tabulation)
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT, tabulation=tabulation)) as journal:
        commit(journal, [event(2)])

    assert kinds(tmp_path, 0).count(FrameKind.SEAL) == 1
    assert kinds(tmp_path, 0)[-1] == FrameKind.SEAL
    assert read_all(tmp_path, Files()) == (numbered([*written, event(2)]), None)
    assert verify(tmp_path, tabulation=tabulation).verdict is Verdict.CLEAN


def test_an_orderly_stop_adds_nothing_to_it(tmp_path):
    """A seal proves as much as a watermark."""
    written = sealed(tmp_path, None)
    begin(Journal.open(tmp_path, segment_bytes=SEGMENT)).close()

    assert kinds(tmp_path, 0)[-1] == FrameKind.SEAL
    with Reader(tmp_path) as reader:
        assert [bytes(entry.event) for entry in reader] == written
