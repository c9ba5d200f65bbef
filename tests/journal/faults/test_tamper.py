"""Fault class 13: an editor without keys, who recomputes checksums, chains, or everything.

The chain has no key. It detects every edit except one: an editor may rewrite the whole rest of the journal. Only a
sequence number with its chain value that was noted before (an anchor) shows that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from google_crc32c import value as crc32c

from journal import Damage, JournalDamaged, Reader, Verdict, verify
from journal.format import CRC_STRUCT, HEADER_BYTES, FrameKind
from journal.frame import array_head
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
    resealed,
    rewritten,
    segment_header,
)
from tests.journal.make import MemoryFiles

Edit = Callable[[bytes], bytes]


def edited(piece: Piece) -> Piece:
    """Return the frame with one word of one event changed: valid msgpack of the same length, checksums recomputed."""
    at = piece.body.index(b"Counted")
    return forged(piece, piece.body[:at] + b"Forged!" + piece.body[at + 7 :])


def nth(place: int, **changes: object) -> Edit:
    """Return one frame with other header fields and right checksums."""
    return lambda image: put_pieces(image, [forged(events_in(image)[place], **changes)])


def body_of(place: int) -> Edit:
    """Return another event in one frame, with right checksums."""
    return lambda image: put_pieces(image, [edited(events_in(image)[place])])


def body_and_chain(place: int) -> Edit:
    """The same, with the chain and the seal of the whole segment recomputed."""

    def edit(image: bytes) -> bytes:
        victim = events_in(image)[place]
        return rechained(image, instead(pieces_of(image), victim, edited))[0]

    return edit


def deleted(image: bytes) -> bytes:
    """Remove one frame and move the later ones up, with places, numbers and chain recomputed."""
    pieces = pieces_of(image)
    victim = events_in(image)[1]
    kept, shift, count = [], 0, 0
    previous = 0
    for one in pieces:
        if one == victim:
            shift, count = one.end - one.offset, one.header.count
            continue
        moved = Piece(one.offset - shift, one.end - shift, one.header, one.body)
        first = one.header.first_seq - count
        kept.append(forged(moved, offset=moved.offset, previous_offset=previous, first_seq=first, acked_seq=first - 1))
        previous = moved.offset
    end = pieces[-1].end
    return rechained(put(image, end - shift, bytes(shift)), kept)[0]


def deleted_simply(image: bytes) -> bytes:
    """Fill one frame's place with the next frames, unchanged."""
    victim = events_in(image)[1]
    end = pieces_of(image)[-1].end
    return put(image, victim.offset, image[victim.end : end].ljust(end - victim.offset, b"\0"))


def reordered(image: bytes) -> bytes:
    """Exchange the bodies of two frames and recompute checksums."""
    one, two = events_in(image)[:2]
    changed = [forged(one, two.body, count=two.header.count), forged(two, one.body, count=one.header.count)]
    return (
        put_pieces(image, changed) if changed[0].end - one.offset >= HEADER_BYTES + len(two.body) else body_of(0)(image)
    )


def cut_last(image: bytes) -> bytes:
    """Overwrite the last frames with zeros."""
    last = pieces_of(image)[-1]
    return put(image, last.offset, bytes(last.end - last.offset))


def smaller_batch(image: bytes) -> bytes:
    """Remove the last event of a batch and lower its count."""
    piece = next(one for one in events_in(image) if one.header.count > 1)
    events = msgspec.msgpack.decode(piece.body, type=list[msgspec.Raw])[:-1]
    body = array_head(len(events)) + b"".join(bytes(one) for one in events)
    return put_pieces(image, [forged(piece, body, count=len(events))])


def seal_with(**changes: object) -> Edit:
    """Return a seal with another content."""
    return lambda image: put_pieces(image, [resealed(pieces_of(image)[-1], **changes)])


def header_with(**changes: object) -> Edit:
    """Return a segment header with another field and a right checksum."""
    return lambda image: forged_header(image, **changes)


def reserved_bytes(image: bytes) -> bytes:
    """Change reserved bytes of the segment header, with a right checksum."""
    head = image[:190] + b"\1" + image[191 : HEADER_BYTES - 4]
    return put(image, 0, head + CRC_STRUCT.pack(crc32c(head)))


FIRST, NEWEST = 0, -1
CASES: dict[str, tuple[int, Edit]] = {
    "an event in a sealed segment": (FIRST, body_of(1)),
    "the last event of a sealed segment": (FIRST, body_of(-1)),
    "an event in the newest segment": (NEWEST, body_of(0)),
    "the last event of all": (NEWEST, body_of(-1)),
    "an event and the chain of its segment": (FIRST, body_and_chain(1)),
    "the first event and the chain of its segment": (FIRST, body_and_chain(0)),
    "a frame taken out": (FIRST, deleted_simply),
    "a frame taken out and everything after it moved and chained": (FIRST, deleted),
    "two frames with each other's events": (FIRST, reordered),
    "the seal cut off": (FIRST, cut_last),
    "an event taken out of a batch": (1, smaller_batch),
    "another step on a frame": (FIRST, nth(1, step=7, step_max=7)),
    "another epoch on a frame": (FIRST, nth(1, epoch=7)),
    "another time on a frame": (FIRST, nth(1, wall_ns=7)),
    "another monotonic time on a frame": (FIRST, nth(1, mono_ns=7)),
    "a running maximum made larger": (NEWEST, nth(0, wall_ns_max=1 << 40)),
    "another number acknowledged": (FIRST, nth(1, acked_seq=0)),
    "a higher sequence number": (FIRST, nth(1, first_seq=99)),
    "a count that is too large": (FIRST, nth(1, count=4096)),
    "another kind of frame": (FIRST, nth(1, kind=int(FrameKind.STATE_HASH), count=0)),
    "a frame marked as skippable": (FIRST, nth(1, flags=0x8000)),
    "another chain value": (FIRST, nth(1, previous_chain=bytes(32))),
    "a seal with another index": (FIRST, seal_with(index=[])),
    "a seal with other totals": (FIRST, seal_with(events=1)),
    "a seal with another chain value": (FIRST, seal_with(chain=bytes(32))),
    "another context in a segment header": (FIRST, header_with(context_hash=bytes(32))),
    "another time in a segment header": (FIRST, header_with(created_wall_ns=5)),
    "another boot in the newest header": (NEWEST, header_with(boot_id=bytes(16))),
    "another link": (NEWEST, header_with(previous_chain=bytes(32))),
    "an earlier end of the predecessor": (NEWEST, header_with(previous_length=1024)),
    "reserved bytes of a segment header": (FIRST, reserved_bytes),
}


def path_of(images: Images, number: int) -> Path:
    return sorted(images)[number]


@pytest.mark.parametrize("name", list(CASES))
def test_an_edit_with_good_checksums_is_found(name):
    """Writers refuse it, verify never reports clean, and no false event is read as acknowledged."""
    images, last = make_journal()
    number, edit = CASES[name]
    path = path_of(images, number)
    before = images[path]
    images[path] = edit(before)

    said = ask(images, last)

    print(f"class 13, {name}: opened {said.opened}, verified {said.verdict}, {said.damage}")
    assert images[path] != before
    assert said.opened not in ("opened", "JournalTooNew")
    assert said.verdict in (Verdict.TAMPERED, Verdict.DAMAGED)
    assert said.counts["lost"] == 0


def test_the_chain_names_the_edit_and_calls_it_one():
    """If the checksums are right and the chain is not, verify says tampered and names the frame after the edit."""
    images, _last = make_journal()
    path = path_of(images, FIRST)
    victim, behind = events_in(images[path])[1:3]
    images[path] = body_of(1)(images[path])

    report = verify(FOLDER, files=MemoryFiles(images))

    assert report.verdict is Verdict.TAMPERED
    assert report.problem is not None
    assert (report.problem.file, report.problem.offset) == (path, behind.offset)
    assert victim.end == behind.offset


def test_the_last_entries_are_not_read_past_an_edit():
    """Reading backwards compares each frame with the one after it."""
    images, last = make_journal()
    path = path_of(images, NEWEST)
    images[path] = body_of(0)(images[path])

    with Reader(FOLDER, files=MemoryFiles(images)) as reader, pytest.raises(JournalDamaged):
        reader.tail(last)


def test_a_segment_of_another_run_in_a_good_chain_is_found():
    """Links, places and checksums are recomputed; the run id in its header shows it."""
    images, last = make_journal()
    path = path_of(images, 1)
    images[path] = forged_header(images[path], run_id=bytes(16))
    pieces = [forged(one, run_id=bytes(16)) for one in pieces_of(images[path])]

    said = ask(rewritten_from_the_start(images, path, pieces), last)

    assert (said.opened, said.verdict) == (Damage.LINK, Verdict.TAMPERED)


def rewritten_from_the_start(images: Images, path: Path, pieces: list[Piece]) -> Images:
    """As `rewritten`, but the changed segment keeps its own link."""
    before = {name: image for name, image in images.items() if name < path}
    return {**before, **rewritten({name: image for name, image in images.items() if name >= path}, path, pieces)}


def test_a_journal_written_anew_shows_only_against_an_anchor():
    """A known limit: without a key the whole rest can be forged. Only a chain value noted before shows it."""
    images, _ = make_journal()
    anchor = verify(FOLDER, files=MemoryFiles(images))
    first = path_of(images, FIRST)
    victim = events_in(images[first])[1]
    pieces = instead(pieces_of(images[first]), victim, edited)

    report = verify(FOLDER, files=MemoryFiles(rewritten(images, first, pieces)))

    assert (anchor.verdict, report.verdict) == (Verdict.CLEAN, Verdict.CLEAN)
    assert report.last_seq == anchor.last_seq
    assert report.chain != anchor.chain


@pytest.mark.parametrize(("place", "changes"), [(0, {"wall_ns_max": 1 << 40}), (-2, {"step_max": 0})])
def test_running_maxima_that_are_not_are_found_in_a_good_chain(place, changes):
    """Verify recomputes the maxima that searches rely on, also in a journal that was rewritten as a whole."""
    images, _ = make_journal()
    path = path_of(images, FIRST)
    victim = events_in(images[path])[place]
    pieces = instead(pieces_of(images[path]), victim, lambda one: forged(one, **changes))

    report = verify(FOLDER, files=MemoryFiles(rewritten(images, path, pieces)))

    assert (report.verdict, report.problem and report.problem.damage) == (Verdict.DAMAGED, Damage.INDEX)


@pytest.mark.parametrize("place", [FIRST, 1, NEWEST])
def test_maxima_that_a_segment_does_not_take_over_are_found_in_a_good_chain(place):
    """Its first frame continues the maxima of the segment before; searches skip whole segments by them."""
    images, _ = make_journal()
    path = path_of(images, place)
    pieces = pieces_of(images[path])
    higher = [forged(one, step_max=one.header.step_max + 1000) for one in pieces]
    if pieces[-1].header.kind == FrameKind.SEAL:
        index = [[*row[:4], row[4] + 1000] for row in msgspec.msgpack.decode(pieces[-1].body)["index"]]
        higher[-1] = resealed(higher[-1], index=index)
    changed = rewritten_from_the_start(images, path, higher)

    report = verify(FOLDER, files=MemoryFiles(changed))

    assert (report.verdict, report.problem and report.problem.damage) == (Verdict.DAMAGED, Damage.INDEX)
    assert report.problem.file == path
    assert report.problem.offset == pieces[0].offset


@pytest.mark.parametrize("changes", [{"index": []}, {"events": 1}, {"frames": 9}, {"last_seq": 1}, {"first_seq": 5}])
def test_a_seal_that_lies_in_a_good_chain_is_found(changes):
    """The sums and the index of a seal are compared with its frames."""
    images, _ = make_journal()
    path = path_of(images, FIRST)
    *pieces, seal = pieces_of(images[path])

    report = verify(FOLDER, files=MemoryFiles(rewritten(images, path, [*pieces, resealed(seal, **changes)])))

    assert (report.verdict, report.problem and report.problem.damage) == (Verdict.DAMAGED, Damage.INDEX)


def test_a_first_segment_with_a_predecessor_is_found():
    """If the beginning is cut off and the second segment renamed, its link still names a predecessor."""
    images, last = make_journal()
    first = path_of(images, FIRST)
    images[first] = forged_header(images[first], previous_chain=b"c" * 32)
    images = rewritten(images, first, pieces_of(images[first]))

    said = ask(images, last)

    assert (said.opened, said.verdict) == (Damage.LINK, Verdict.TAMPERED)


def test_a_journal_cut_back_shows_only_against_an_anchor():
    """A known limit: if zeros replace the last frames, it looks like a shorter journal. A noted value shows it."""
    images, last = make_journal(close=False)
    path = path_of(images, NEWEST)
    anchor = verify(FOLDER, files=MemoryFiles(images))
    images[path] = cut_last(images[path])

    report = verify(FOLDER, files=MemoryFiles(images))

    assert segment_header(images[path]).segment_no == len(images)
    assert (anchor.verdict, anchor.last_seq) == (Verdict.CLEAN, last)
    assert report.verdict is Verdict.CLEAN
    assert report.chain != anchor.chain
