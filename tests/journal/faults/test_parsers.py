"""Fault class 18: parsers under hostile bytes, also forged ones with right checksums and newer versions.

Whatever a file contains, every way of opening, reading, searching, verifying and counting ends with an answer or a
JournalError. Memory depends on the length of the file, not on the numbers in a header.
"""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import (
    Damage,
    JournalDamaged,
    Reader,
    Verdict,
    verify,
)
from journal.format import ENTRY_MAGIC, HEADER_BYTES, FrameKind
from journal.frame import Flaw, decode_segment_header, parse_entry
from tests.journal.faults.forging import Fuzz, in_time
from tests.journal.faults.harness import BLOCK, told
from tests.journal.faults.lab import (
    FOLDER,
    PLAN,
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
)
from tests.journal.make import MemoryFiles

MEMORY_MAX = 16 << 20  # of a journal of some 100 KB


def newest(images: Images) -> Path:
    return max(images)


# Records as a newer version would write them.


@pytest.mark.parametrize(
    "changes", [{"version": 3}, {"header_bytes": 512}, {"incompatible_flags": 1}, {"codec": 2}, {"hash": 2}]
)
def test_a_newer_segment_is_refused_as_newer(changes):
    """An unknown version, flag, codec or hash is reported as too new by every reader, and not as damage."""
    images, last = make_journal()
    images[newest(images)] = forged_header(images[newest(images)], **changes)

    said = ask(images, last)

    assert (said.opened, said.verdict) == ("JournalTooNew", Verdict.TOO_NEW)


@pytest.mark.parametrize("changes", [{"version": 3}, {"header_bytes": 512}, {"flags": 1}, {"kind": 99, "count": 0}])
def test_a_newer_frame_is_refused_as_newer(changes):
    """A frame with unknown features is not judged by this version's rules."""
    images, last = make_journal(close=False)
    path = newest(images)
    images[path] = put_pieces(images[path], [forged(events_in(images[path])[-1], **changes)])

    said = ask(images, last)

    assert (said.opened, said.verdict) == ("JournalTooNew", Verdict.TOO_NEW)


def test_a_skippable_frame_of_a_newer_version_is_passed_over():
    """An unknown kind that may be skipped takes no number and does no harm."""
    images, last = make_journal(close=False)
    path = newest(images)
    end = pieces_of(images[path])[-1]
    behind = Piece(end.end, end.end + BLOCK, end.header, b"\xc0")
    changes = {"kind": 99, "flags": 0x8000, "count": 0, "first_seq": last + 1, "acked_seq": last}
    frame = forged(behind, offset=behind.offset, previous_offset=end.offset, **changes)
    images[path], _ = rechained(put_pieces(images[path], [frame]), [*pieces_of(images[path]), frame])

    said = ask(images, last)

    assert (said.opened, said.verdict, said.counts) == ("opened", Verdict.CLEAN, {"lost": 0, "wrong": 0})


@pytest.mark.parametrize(
    "changes", [{"alignment": 0}, {"alignment": 3000}, {"alignment": 1 << 20}, {"segment_bytes": 0}]
)
def test_a_segment_header_outside_the_bounds_is_damage(changes):
    """An invalid block size or length is refused by every reader, although the checksum is right."""
    images, last = make_journal()
    images[newest(images)] = forged_header(images[newest(images)], **changes)

    said = ask(images, last)

    assert (said.opened, said.verdict) == ("header", Verdict.DAMAGED)


def test_a_link_into_the_middle_of_a_frame_ends_verify_with_damage():
    """If a predecessor's end is not the end of a frame, verify answers and does not search for ever."""
    images, _ = make_journal()
    path = newest(images)
    before = sorted(images)[-2]
    images[path] = forged_header(images[path], previous_length=events_in(images[before])[0].end - 512)

    report = verify(FOLDER, files=MemoryFiles(images))

    assert report.verdict in (Verdict.DAMAGED, Verdict.TAMPERED)


@pytest.mark.parametrize("offset", [1 << 63, (1 << 64) - 1])
def test_a_link_to_no_place_at_all_is_damage(offset):
    """An offset outside the file is a wrong link, not an arithmetic error."""
    images, last = make_journal()
    images[newest(images)] = forged_header(images[newest(images)], previous_last_offset=offset)

    said = ask(images, last)

    assert said.opened == "frame"
    assert said.verdict is Verdict.DAMAGED


# Records that no version writes, with every checksum and the chain made good.


def forged_in_chain(images: Images, act: Callable[[Piece], Piece]) -> Images:
    """Return the journal with one frame of the newest segment changed and the chain after it recomputed."""
    path = newest(images)
    pieces = pieces_of(images[path])
    victim = next(one for one in pieces if one.header.kind == FrameKind.EVENTS)
    return {**images, path: rechained(images[path], instead(pieces, victim, act))[0]}


@pytest.mark.parametrize(
    "changes", [{"count": 0}, {"count": 4097}, {"acked_seq": 1 << 40}, {"first_seq": 1 << 40}, {"previous_offset": 0}]
)
def test_a_frame_outside_the_bounds_is_damage(changes):
    """Too many events, none, too high acknowledged numbers, or numbers with gaps are refused."""
    images, last = make_journal()

    said = ask(forged_in_chain(images, lambda piece: forged(piece, **changes)), last)

    assert (said.opened, said.verdict) == ("misplaced", Verdict.DAMAGED)


@pytest.mark.parametrize("body", [b"\xc0", b"\x91", b"\x92\xc0\xc0\xc0", b"", b"\xdd\xff\xff\xff\xff"])
def test_a_body_that_is_not_its_events_is_damage(body):
    """A frame whose body has another number of events than its header says is named, and none of them is returned."""
    images, _ = make_journal()
    images = forged_in_chain(images, lambda piece: forged(piece, body))

    report = verify(FOLDER, files=MemoryFiles(images))
    with Reader(FOLDER, files=MemoryFiles(images)) as reader, pytest.raises(JournalDamaged) as refusal:
        list(reader)

    assert (report.verdict, report.problem and report.problem.damage) == (Verdict.DAMAGED, Damage.BODY)
    assert refusal.value.damage is Damage.BODY


def test_a_count_larger_than_the_body_is_damage():
    """The body's own count is compared with the header's."""
    images, _ = make_journal()
    path = newest(images)
    pieces = pieces_of(images[path])
    victim = max((one for one in pieces if one.header.kind == FrameKind.EVENTS), key=lambda one: one.offset)
    kept = [one for one in pieces if one.offset <= victim.offset]
    changed = instead(kept, victim, lambda one: forged(one, count=one.header.count + 1))
    end = changed[-1].end
    images[path] = put(rechained(images[path], changed)[0], end, bytes(len(images[path]) - end))

    report = verify(FOLDER, files=MemoryFiles(images))

    assert (report.verdict, report.problem and report.problem.damage) == (Verdict.DAMAGED, Damage.BODY)


def test_bytes_farther_than_the_torn_write_reaches_are_damage():
    """The header at the torn place gives the length of its write; bytes after that are damage."""
    plan = msgspec.structs.replace(PLAN, segment_bytes=64 * 512)
    images, last = make_journal(plan, close=False)
    path = newest(images)
    victim = events_in(images[path])[-1]
    torn = put(images[path], victim.offset + HEADER_BYTES, bytes(victim.end - victim.offset - HEADER_BYTES))
    far = victim.end + 2 * 512
    before = victim.header.first_seq - 1

    cut = ask({**images, path: torn}, before, plan)
    damaged = ask({**images, path: put(torn, far, b"stray")}, last, plan)

    assert (cut.opened, cut.verdict) == ("opened", Verdict.TORN_TAIL)
    assert (damaged.opened, damaged.verdict) == ("stray_bytes", Verdict.DAMAGED)


# Anything at all.


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.booleans())
def test_any_bytes_are_a_header_or_a_flaw(data, with_magic):
    """Any 256 bytes are parsed or refused, without another exception."""
    data = ENTRY_MAGIC + data[8:] if with_magic else data

    assert isinstance(parse_entry(data), Flaw)
    assert isinstance(decode_segment_header(data), Flaw)


@pytest.mark.parametrize("to", ["itself", "the frame after it"])
def test_a_frame_that_names_no_earlier_one_before_it_leads_nobody_in_circles(to):
    """Only its header is forged. A walk backwards from header to header must still end."""
    images, _ = make_journal()
    for path in images:
        pieces = pieces_of(images[path])
        for victim, behind in itertools.pairwise(pieces):
            place = victim.offset if to == "itself" else behind.offset
            changed = forged(victim, previous_offset=place)
            files = MemoryFiles({**images, path: put_pieces(images[path], [changed])})
            with in_time(), Reader(FOLDER, files=files) as reader:
                found = [capture.seq for capture in reader.captures()]
            assert found == sorted(set(found), reverse=True)


def fuzz(cases: int, seed: int) -> None:
    """Run the fuzz. Memory is traced only for the first journals, because tracing makes them five times as slow."""
    drawn = Fuzz(seed)
    watched = min(cases, max(40, cases // 20))
    tracemalloc.start()
    try:
        drawn.run(watched)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counts = drawn.run(cases - watched)
    print(told(f"class 18, {cases} journals", seed, counts))
    assert counts["accidents"] == 0
    assert counts["JournalDamaged"] > cases
    assert counts["JournalTooNew"] > 0
    assert peak < MEMORY_MAX


def test_a_forged_journal_gets_an_answer_or_a_refusal(seed, monkeypatch):
    """Forged fields, forged seals and noise: no other exception in any reader, and no memory by their numbers."""
    monkeypatch.setattr("journal.verification._IN_FLIGHT_PAUSE_S", 0.0)
    fuzz(40, seed)


@pytest.mark.torture
def test_many_forged_journals_get_an_answer_or_a_refusal(seed, monkeypatch):
    """The same for some minutes."""
    monkeypatch.setattr("journal.verification._IN_FLIGHT_PAUSE_S", 0.0)
    fuzz(10_000, seed)
