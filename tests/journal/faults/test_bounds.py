"""Frames and links outside the bounds although their checksums, chain and body agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal import Damage, Files, JournalDamaged, Reader, Verdict, verify
from journal.format import FrameKind
from journal.frame import array_head
from journal.segment import segment_file_name
from tests.journal.faults.lab import (
    FOLDER,
    Images,
    Piece,
    ask,
    events_in,
    forged,
    forged_header,
    instead,
    make_journal,
    pieces_of,
    put,
    put_pieces,
    rechained,
    segment_header,
)
from tests.journal.make import MemoryFiles


def newest(images: Images) -> Path:
    return max(images)


def with_last_frame(images: Images, act) -> Images:
    """Return the journal with its last frame of events changed, zeros after it, and the chain recomputed."""
    path = newest(images)
    pieces = pieces_of(images[path])
    victim = events_in(images[path])[-1]
    kept = instead([one for one in pieces if one.offset <= victim.offset], victim, act)
    image = put(images[path], victim.offset, bytes(len(images[path]) - victim.offset))
    return {**images, path: rechained(image, kept)[0]}


def refused(images: Images, last: int) -> None:
    """Check that writers and verify refuse it, as damage and not as a torn write."""
    said = ask(images, last)

    assert (said.opened, said.verdict) == (Damage.MISPLACED, Verdict.DAMAGED)


def test_a_frame_of_no_events_is_refused():
    """Its body is an empty list, as its header says."""
    images, last = make_journal(close=False)

    refused(with_last_frame(images, lambda piece: forged(piece, array_head(0), count=0)), last)


def test_a_frame_of_too_many_events_is_refused():
    """It has one more than a writer puts into a frame, and all of them exist."""
    images, last = make_journal(close=False)
    body = array_head(4097) + b"\xc0" * 4097

    def act(piece: Piece) -> Piece:
        frame = forged(piece, body, count=4097)
        return Piece(frame.offset, frame.offset + (256 + len(body) + 511) // 512 * 512, frame.header, body)

    path = newest(images)
    images[path] = forged_header(images[path], segment_bytes=64 * 512).ljust(64 * 512, b"\0")
    refused(with_last_frame(images, act), last)


def test_a_body_that_is_too_long_is_refused(monkeypatch):
    """The bound is made small, so an ordinary frame exceeds it: readers allocate by this number."""
    images, last = make_journal(close=False)
    longest = max(len(one.body) for path in images for one in pieces_of(images[path]))
    for module in ("segment", "frame"):
        monkeypatch.setattr(f"journal.{module}.BODY_BYTES_MAX", longest - 1)

    said = ask(images, last)

    assert (said.verdict, said.damage) == (Verdict.DAMAGED, Damage.MISPLACED)


def test_a_last_frame_that_claims_more_than_its_file_holds_is_no_torn_write():
    """A writer checks for room first. If the frame were cut as torn, an acknowledged event would be lost."""
    images, last = make_journal(close=False)
    path = newest(images)
    victim = events_in(images[path])[-1]
    longer = forged(victim, victim.body + bytes(len(images[path])))
    claim = Piece(victim.offset, victim.end, longer.header, victim.body)

    refused({**images, path: put_pieces(images[path], [claim])}, last)


def test_numbers_that_are_left_out_between_two_segments_are_found():
    """The newest segment is moved by one number, with name, frames and chain recomputed: its link contradicts it."""
    images, last = make_journal(close=False)
    path = newest(images)
    image = images.pop(path)
    pieces = pieces_of(image)
    moved = [forged(one, first_seq=one.header.first_seq + 1, acked_seq=one.header.acked_seq + 1) for one in pieces]
    first = segment_header(image).first_seq + 1
    name = segment_file_name(segment_header(image).segment_no, first)
    images[FOLDER / name] = rechained(forged_header(image, first_seq=first), moved)[0]

    said = ask(images, last)

    assert (said.opened, said.verdict) == (Damage.LINK, Verdict.TAMPERED)


def test_a_reader_does_not_pass_over_a_link_into_the_middle_of_a_frame():
    """Only a frame whose write was declared as failed may be after the end of its segment."""
    images, _ = make_journal()
    path, before = newest(images), sorted(images)[-2]
    victim = events_in(images[before])[-1]
    assert victim.end - victim.offset > 512
    linked = forged_header(images[path], previous_length=victim.end - 512)
    images[path] = rechained(linked, pieces_of(images[path]))[0]

    with Reader(FOLDER, files=MemoryFiles(images)) as reader, pytest.raises(JournalDamaged):
        list(reader)


def test_damage_that_opening_does_not_read_is_met_by_the_fold(monkeypatch):
    """Opening reads only the ends of an old segment. A fold gets all of its events or a refusal."""
    monkeypatch.setattr("journal.opening.OLDER_BYTES_MAX", 0)
    images, last = make_journal()
    path = min(images)
    victim = next(one for one in pieces_of(images[path]) if one.header.kind == FrameKind.EVENTS)
    images[path] = put(images[path], victim.offset + 300, b"?")

    said = ask(images, last)

    assert said.opened.startswith("opened, and then an acknowledged frame does not verify")
    assert verify(FOLDER, files=MemoryFiles(images)).verdict is Verdict.DAMAGED


def test_a_file_that_is_there_is_never_made_anew(tmp_path):
    """Creating a file that exists is an error, and it is not overwritten."""
    (tmp_path / "kept").write_bytes(b"kept")

    with pytest.raises(FileExistsError):
        Files().create(tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == b"kept"
