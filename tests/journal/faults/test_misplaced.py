"""Fault class 12: bytes that belong elsewhere: stale, swapped, misdirected, copied, of another run, missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from journal import Damage, JournalDamaged, Verdict, repair
from journal.format import HEADER_BYTES
from journal.frame import Flaw
from journal.segment import SegmentName, SegmentView, segment_file_name
from tests.journal.faults import harness
from tests.journal.faults.lab import (
    FOLDER,
    PLAN,
    Images,
    Piece,
    ask,
    events_in,
    forged,
    make_journal,
    pieces_of,
    put,
    segment_header,
)
from tests.journal.make import MemoryFiles


def file(images: Images, number: int) -> Path:
    """Return the segment at this index; negative counts from the end."""
    return sorted(images)[number]


def named(number: int, first_seq: int) -> Path:
    return FOLDER / segment_file_name(number, first_seq)


def over(target: int, source: int) -> Callable[[Images], None]:
    """Write one segment's bytes to another one's name."""

    def change(images: Images) -> None:
        images[file(images, target)] = images[file(images, source)]

    return change


def another_run(target: int) -> Callable[[Images], None]:
    """Replace a segment by that of another run."""

    def change(images: Images) -> None:
        theirs = other_run()
        images[file(images, target)] = theirs[file(theirs, target)]

    return change


def other_run() -> Images:
    """Return a journal of another run with the same content."""
    mine, harness.RUN = harness.RUN, bytes(16)
    try:
        return make_journal()[0]
    finally:
        harness.RUN = mine


def again_as(source: int, number: int, first_seq: int | None = None) -> Callable[[Images], None]:
    """Copy a segment to another number."""

    def change(images: Images) -> None:
        image = images[file(images, source)]
        seq = segment_header(image).first_seq if first_seq is None else first_seq
        images[named(number + len(images) if number <= 0 else number, seq)] = image

    return change


def without(number: int) -> Callable[[Images], None]:
    """Remove a segment."""

    def change(images: Images) -> None:
        del images[file(images, number)]

    return change


def emptied(number: int, length: int | None) -> Callable[[Images], None]:
    """Replace a segment by a file of zeros or of another length."""

    def change(images: Images) -> None:
        path = file(images, number)
        images[path] = bytes(len(images[path])) if length is None else images[path].ljust(length, b"\0")[:length]

    return change


def frames(number: int, act: Callable[[bytes, list[Piece], Images], bytes]) -> Callable[[Images], None]:
    """Change the frames with events of one segment."""

    def change(images: Images) -> None:
        path = file(images, number)
        images[path] = act(images[path], events_in(images[path]), images)

    return change


def swapped(image: bytes, found: list[Piece], _: Images) -> bytes:
    one, other = next(
        (a, b) for a in found for b in found if a.offset < b.offset and a.end - a.offset == b.end - b.offset
    )
    return put(put(image, one.offset, other.padded), other.offset, one.padded)


def written_over_the_one_before(image: bytes, found: list[Piece], _: Images) -> bytes:
    return put(image, found[0].offset, found[1].padded)


def written_after_the_end(image: bytes, found: list[Piece], _: Images) -> bytes:
    end = pieces_of(image)[-1].end
    return put(image, end, found[-1].padded)


def lost_in_the_middle(image: bytes, found: list[Piece], _: Images) -> bytes:
    return put(image, found[0].offset, bytes(found[0].end - found[0].offset))


def of_another_segment(image: bytes, found: list[Piece], images: Images) -> bytes:
    theirs = events_in(images[file(images, 0)])
    return put(image, found[-1].offset, theirs[-1].padded)


def of_another_run(image: bytes, found: list[Piece], images: Images) -> bytes:
    theirs = other_run()
    place = sorted(images).index(next(path for path, mine in images.items() if mine == image))
    return put(image, found[-1].offset, events_in(theirs[file(theirs, place)])[-1].padded)


def tail_of_another(image: bytes, _: list[Piece], images: Images) -> bytes:
    end = pieces_of(image)[-1].end
    theirs = events_in(images[file(images, 0)])[-1]
    return put(image, end, images[file(images, 0)][theirs.offset :].ljust(len(image) - end, b"\0"))


def repeated(image: bytes, found: list[Piece], _: Images) -> bytes:
    return put(image, found[1].offset, found[0].padded)


CASES: dict[str, tuple[Callable[[Images], None], set[str]]] = {
    "an older segment over the newest": (over(-1, 0), {"misplaced"}),
    "the newest segment over an older one": (over(1, -1), {"misplaced"}),
    "the first segment over the second": (over(1, 0), {"misplaced"}),
    "the first segment of another run": (another_run(0), {"link"}),
    "a middle segment of another run": (another_run(1), {"link"}),
    "the newest segment of another run": (another_run(-1), {"link"}),
    "a segment twice, the copy under the next free number": (again_as(0, 0 + 0), {"missing_segment", "misplaced"}),
    "the newest twice": (again_as(-1, 99), {"missing_segment"}),
    "two files of one number": (again_as(1, 2, first_seq=1), {"missing_segment", "misplaced"}),
    "the first segment missing": (without(0), {"missing_segment"}),
    "a middle segment missing": (without(1), {"missing_segment"}),
    "the last but one missing": (without(-2), {"missing_segment"}),
    "zeros under the name of the newest": (emptied(-1, None), {"header"}),
    "zeros under the name of a middle one": (emptied(1, None), {"header"}),
    "an empty file": (emptied(-1, 0), {"header"}),
    "a file cut short": (emptied(1, 1024), {"length", "frame"}),
    "a file made longer": (emptied(-1, 100_000), {"length"}),
    "an older file made longer": (emptied(0, 100_000), {"length"}),
    "two frames swapped in a sealed segment": (frames(0, swapped), {"misplaced", "frame"}),
    "a frame over the one before it": (frames(0, written_over_the_one_before), {"misplaced", "frame"}),
    "a frame repeated in the next one's place": (frames(0, repeated), {"misplaced", "frame"}),
    "a frame again after the seal": (frames(0, written_after_the_end), {"stray_bytes", "misplaced"}),
    "a frame again after the last": (frames(-1, written_after_the_end), {"misplaced"}),
    "a write lost in a sealed segment": (frames(0, lost_in_the_middle), {"frame"}),
    "a write lost in the newest": (frames(-1, lost_in_the_middle), {"frame"}),
    "a frame of another segment": (frames(-1, of_another_segment), {"misplaced", "frame"}),
    "a frame of another run": (frames(-1, of_another_run), {"misplaced"}),
    "the end of another segment after the end": (frames(-1, tail_of_another), {"misplaced", "frame", "stray_bytes"}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_what_belongs_elsewhere_is_refused_by_name(name):
    """Writers refuse it with its class, verify never reports clean, and no reader returns a wrong event."""
    images, last = make_journal()
    change, expected = CASES[name]
    change(images)

    said = ask(images, last)

    print(f"class 12, {name}: {said}")
    assert said.opened in expected
    assert said.verdict in (Verdict.DAMAGED, Verdict.TAMPERED)
    assert (said.counts["lost"], said.counts["wrong"]) == (0, 0)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_last_write_in_the_wrong_place_is_not_taken_for_a_torn_one(blocks):
    """The last acknowledged frame is some blocks too far: its place is empty, and its header shows it."""
    images, last = make_journal(msgspec.structs.replace(PLAN, segment_bytes=32 * 512), close=False)
    path = file(images, -1)
    image, missing = images[path], pieces_of(images[path])[-1]
    empty = put(image, missing.offset, bytes(missing.end - missing.offset))
    images[path] = put(empty, missing.offset + 512 * blocks, missing.padded)

    said = ask(images, last)

    assert said.opened == "frame"
    assert said.verdict is Verdict.DAMAGED
    assert repair(FOLDER, files=MemoryFiles(images)).action == "refused"


@pytest.mark.parametrize("theirs", ["of this segment", "of another segment", "of another run"])
def test_a_whole_frame_elsewhere_is_misplaced_for_whoever_looks(theirs):
    """Both checksums are right. The place in its header shows that it does not belong here."""
    images, _ = make_journal(close=False)
    path = file(images, -1)
    smallest = min(events_in(images[path]), key=lambda piece: piece.end - piece.offset)
    piece = {
        "of this segment": smallest,
        "of another segment": events_in(images[file(images, 0)])[0],
        "of another run": forged(smallest, run_id=bytes(16)),
    }[theirs]
    at = pieces_of(images[path])[-1].end if theirs == "of this segment" else piece.offset
    files = MemoryFiles({path: put(images[path], at, piece.padded)})

    view = SegmentView(files, SegmentName(len(images), segment_header(images[path]).first_seq, path))

    assert view.frame_at(at) is Flaw.MISPLACED
    assert view.header_at(at) is Flaw.MISPLACED


@pytest.mark.parametrize("name", ["an older file made longer", "a frame over the last one"])
def test_what_an_opening_does_not_read_is_held_by_its_ends(name, monkeypatch):
    """Of an older segment that is not read completely, opening checks the length and the last frame."""
    monkeypatch.setattr("journal.opening.OLDER_BYTES_MAX", 0)
    images, last = make_journal()
    path = file(images, 0)
    seal = pieces_of(images[path])[-1]
    images[path] = (
        images[path].ljust(100_000, b"\0") if "longer" in name else put(images[path], seal.offset + 300, b"?")
    )

    said = ask(images, last)

    assert said.opened == ("length" if "longer" in name else "frame")


def test_bytes_after_the_seal_of_the_newest_segment_are_damage():
    """A crash between seal and rename leaves a sealed newest segment; no write puts bytes after its seal."""
    images, _ = make_journal()
    del images[file(images, -1)]
    path = file(images, -1)
    end = pieces_of(images[path])[-1].end
    images[path] = put(images[path], end + 100, b"stray")

    assert ask(images, 0).opened == "stray_bytes"


def test_every_bit_of_a_segment_header_is_under_its_checksum():
    """A damaged header is reported as such, not as a newer version or an edit."""
    images, last = make_journal()
    path = file(images, 1)

    for at in range(8, HEADER_BYTES):
        image = images[path]
        flipped = image[:at] + bytes((image[at] ^ 1 << at % 8,)) + image[at + 1 :]
        said = ask({**images, path: flipped}, last)
        assert (said.opened, said.verdict) == ("header", Verdict.DAMAGED)


def test_a_newest_segment_that_is_gone_shows_only_against_an_anchor():
    """A known limit: the segment before it looks like the last. Only a chain value noted elsewhere shows the loss."""
    images, last = make_journal()
    whole = ask(images, last)
    del images[file(images, -1)]

    said = ask(images, last)

    assert (whole.opened, whole.verdict) == ("opened", Verdict.CLEAN)
    assert (said.opened, said.verdict) == ("opened", Verdict.CLEAN)
    assert said.counts["lost"] > 0


def test_a_segment_that_lost_its_name_is_refused_and_not_removed():
    """If the disk loses a rename, a spare has acknowledged events: the start says how to name it."""
    images, last = make_journal()
    proper = file(images, -1)
    spare = proper.with_name("spare-3.tmp")
    images[spare] = images.pop(proper)

    with pytest.raises(JournalDamaged, match=proper.name) as refusal:
        harness.open_journal(FOLDER, PLAN, MemoryFiles(images))
    images[proper] = images.pop(spare)

    assert refusal.value.damage is Damage.MISSING_SEGMENT
    assert ask(images, last).opened == "opened"


def test_a_spare_with_a_head_and_no_events_is_what_a_crash_leaves():
    """A crash between head and rename leaves it. It is no damage, and the next start removes it."""
    images, _ = make_journal()
    image = images.pop(file(images, -1))
    head = pieces_of(image)[0]
    images[FOLDER / "spare-1.tmp"] = image[: head.end].ljust(len(image), b"\0")
    files = MemoryFiles(images)

    with harness.open_journal(FOLDER, PLAN, files) as journal:
        harness.begin_journal(journal)

    assert not [path for path in files.images if path.suffix == ".tmp"]
