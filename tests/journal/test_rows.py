"""A fold by tables gets every event once and in order: as a row, or from its own frame."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from journal import Damage, Files, Journal, JournalDamaged, JournalEntry, Reader, Tabulation, verify
from journal.format import FrameKind
from journal.packing import Packer
from journal.rows import Rows, rows_and_records
from tests.descriptors import opened
from tests.journal.faults.lab import forged, instead, pieces_of, put_pieces, rewritten
from tests.journal.make import FaultyFiles, begin, commit
from tests.journal.test_columns import SEGMENT, TABLE, fill, step
from tolariad.core import messages as m
from tolariad.core.calc.steps.table import steps_in
from tolariad.core.messages.vocabulary import decode_event, encode_event


def told(event: m.Event) -> object:
    """Return what the fold can know of an event: all of it, or the columns of a step."""
    if not isinstance(event, m.StepCompleted):
        return event
    return (event.step, event.loss, event.mono, event.batch, event.rates, event.data, event.metrics)


def read(folder, after_seq: int = 0) -> tuple[list[tuple[int, object]], int]:
    """Return every event after `after_seq` with its number, and how many of them came from tables."""
    found: list[tuple[int, object]] = []
    of_tables = 0
    with Reader(folder) as reader:
        for one in rows_and_records(reader, steps_in, after_seq):
            if isinstance(one, Rows):
                of_tables += one.values.size
                for at in range(one.values.size):
                    row = one.values
                    values = (row.step[at], row.loss[at], row.mono[at], row.batch[at], row.rates[at], row.data[at])
                    found.append((one.seq + at, (*values, row.metrics[at])))
            elif isinstance(one, JournalEntry):
                found.append((one.seq, told(decode_event(one.event))))
    return found, of_tables


def expected(folder) -> list[tuple[int, object]]:
    """Return the same, read frame by frame."""
    with Reader(folder) as reader:
        return [(one.seq, told(decode_event(one.event))) for one in reader]


def many(count: int = 120) -> list[m.StepCompleted]:
    """Steps with metrics that come and go."""
    return [step(n, mono=n * 7, data=n, metrics=(1.0, float(n))[: n % 3]) for n in range(1, count + 1)]


def test_every_event_comes_once_wherever_the_fold_begins(quick_path):
    """Steps in frames of two with another event after each frame, over several segments, packed too."""
    fill(quick_path, many())
    events = expected(quick_path)

    for _ in range(2):
        found, of_tables = read(quick_path)
        assert found == events
        assert len(events) / 3 < of_tables < len(events), "the newest segment is read frame by frame"
        for after in range(0, len(events), 11):
            assert read(quick_path, after)[0] == events[after:]
        Packer(Files(), quick_path, pause_s=0).pack_all()


def test_a_segment_without_a_table_or_with_an_older_one_is_read_frame_by_frame(quick_path):
    """Written by a version that had other columns, by one that had no tables, then by this one."""
    older = Tabulation(TABLE.columns[:7], lambda event: (row := TABLE.row(event)) and row[:7])
    steps = many(180)
    for at, tabulation in ((0, older), (60, None), (120, TABLE)):
        with begin(Journal.open(quick_path, segment_bytes=SEGMENT, tabulation=tabulation)) as journal:
            for one in steps[at : at + 60]:
                commit(journal, [encode_event(one)], step=one.step)

    found, of_tables = read(quick_path)
    assert found == expected(quick_path)
    assert 0 < of_tables < 60


def test_a_step_with_more_metrics_than_a_run_may_have_is_read_from_its_frame(quick_path):
    """A row would have lost some of them."""
    fill(quick_path, [*many(60), step(61, metrics=(0.5,) * 65), *[step(n) for n in range(62, 120)]])

    assert read(quick_path)[0] == expected(quick_path)


def test_whoever_stops_in_the_middle_holds_no_file(quick_path):
    """After any record, while the iterator is still there: an error keeps what it came through."""
    fill(quick_path, many(60))
    before, count = opened(), len(expected(quick_path))

    for stop in range(1, count, 7):
        with Reader(quick_path) as reader:
            records = rows_and_records(reader, steps_in)
            for _ in range(stop):
                next(records, None)
        assert not opened() - before


@pytest.mark.parametrize("call", [5, 12, 19, 26])
def test_a_failed_write_and_a_restart_cost_no_event(quick_path, call):
    """A segment that failed has no table; what was written there again comes once."""
    fill(quick_path, many(60), FaultyFiles("pwrite", call, call, "short"))
    fill(quick_path, [step(n) for n in range(61, 120)])

    assert read(quick_path)[0] == expected(quick_path)


def test_a_table_that_was_changed_and_made_good_is_not_used(quick_path):
    """The seal after it has another hash of it: read frame by frame, the segment is damaged there."""
    fill(quick_path, many(60))
    path = min(quick_path.glob("*.wal"))
    image = path.read_bytes()
    table = next(one for one in pieces_of(image) if one.header.kind == FrameKind.STEP_TABLE)
    path.write_bytes(put_pieces(image, [forged(table, table.body[:-1] + bytes([table.body[-1] ^ 1]))]))

    with pytest.raises(JournalDamaged) as refused:
        read(quick_path)
    assert refused.value.damage is Damage.CHAIN


def test_another_event_that_was_changed_and_made_good_is_damage(quick_path):
    """Its checksums are right, but the frame after it names another hash."""
    fill(quick_path, many(60))
    path = min(quick_path.glob("*.wal"))
    image = path.read_bytes()
    frame = next(one for one in pieces_of(image) if one.header.kind == FrameKind.EVENTS and b"RunResumed" in one.body)
    path.write_bytes(put_pieces(image, [forged(frame, frame.body.replace(b"start", b"START"))]))

    with pytest.raises(JournalDamaged) as refused:
        read(quick_path)
    assert refused.value.damage is Damage.CHAIN


def test_the_steps_of_two_continuations_are_not_one_fold(quick_path):
    """The first segment of one, and the later ones of the other: each table is in the chain of its own journal."""
    one, other = quick_path / "one", quick_path / "other"
    fill(one, [step(1)])
    shutil.copytree(one, other)
    fill(one, [step(n) for n in range(2, 121)])
    fill(other, [step(n, loss=n) for n in range(2, 121)])
    later = sorted(other.glob("*.wal"))[1:]
    for path in later:
        shutil.copy(path, one / path.name)

    with pytest.raises(JournalDamaged) as refused:
        read(one)
    assert later
    assert refused.value.damage is Damage.LINK


@pytest.mark.parametrize("left_out", [0, -1], ids=["the first", "the last"])
def test_a_table_that_leaves_out_an_event_is_damage(quick_path, left_out):
    """Every checksum, chain value and link after it is right, as of a writer that counted wrongly."""
    fill(quick_path, many(60))
    images = {path: path.read_bytes() for path in sorted(quick_path.glob("*.wal"))}
    first = min(images)
    pieces = pieces_of(images[first])
    table = next(one for one in pieces if one.header.kind == FrameKind.STEP_TABLE)
    body = msgspec.msgpack.decode(table.body)
    at = left_out * 16 % len(body["others"])
    body["others"] = body["others"][:at] + body["others"][at + 16 :]
    lying = instead(pieces, table, lambda one: forged(one, msgspec.msgpack.encode(body)))
    for path, image in rewritten(images, first, lying).items():
        path.write_bytes(image)

    with pytest.raises(JournalDamaged) as refused:
        read(quick_path)
    assert refused.value.damage is Damage.INDEX


def long_segment(folder) -> list[tuple[int, object]]:
    """Write a short packed segment, one of several pieces, and one after it. Return the events."""
    steps = many(700)
    with begin(Journal.open(folder, segment_bytes=1 << 20, tabulation=TABLE)) as journal:
        for at in range(0, len(steps), 2):
            note = encode_event(m.RunResumed(origin="start"))
            commit(journal, [*map(encode_event, steps[at : at + 2]), note], step=steps[at].step)
    Packer(Files(), folder, pause_s=0).pack_all()
    return expected(folder)


def before_damage(read) -> list[int]:
    """Return the numbers of the events that come before the reader says that a piece is damaged."""
    found: list[int] = []
    with pytest.raises(JournalDamaged, match="piece") as refused:
        found.extend(read)
    assert refused.value.damage is Damage.PACKED
    return found


def test_what_is_before_a_damaged_piece_of_a_packed_segment_can_be_read(quick_path):
    """Up to the event that `verify` names: from the start, by tables, from any event on. So is what is after it."""
    events = long_segment(quick_path / "whole")
    # The first one is short, and has one piece.
    _, victim, *later = sorted(one.name for one in (quick_path / "whole").glob("*.wal*"))
    size = (quick_path / "whole" / victim).stat().st_size
    lasts = []
    for number in range(8):
        folder = quick_path / str(number)
        shutil.copytree(quick_path / "whole", folder)
        image = bytearray((folder / victim).read_bytes())
        image[(2 * number + 1) * size // 17] ^= 1
        (folder / victim).write_bytes(image)
        last = verify(folder).last_seq
        if last < int(victim[9:25]):
            continue  # its header is in this piece, and says where the segment before it ends
        lasts.append(last)
        with Reader(folder) as reader:
            assert before_damage(one.seq for one in reader) == list(range(1, last + 1))
        for after in range(0, last, max(1, last // 5)):
            with Reader(folder) as reader:
                assert next(iter(reader.seek(seq=after + 1))).seq == after + 1
                assert max((one.seq for one in reader.captures(after + 1)), default=0) <= after + 1
        with Reader(folder) as reader:
            records = rows_and_records(reader, steps_in)
            by_table = before_damage(seq for one in records for seq in seqs_of(one))
            assert by_table[: last + 1] == list(range(1, len(by_table) + 1))[: last + 1]
            assert len(by_table) >= last
            assert reader.tail(1)[0].seq == len(events)
            assert next(iter(reader.captures())).seq > last
    assert later
    assert lasts == sorted(lasts)
    assert len({*lasts}) > 2


def seqs_of(record) -> range:
    """Return the numbers of the events of a record."""
    if isinstance(record, Rows):
        return range(record.seq, record.seq + record.count)
    return range(record.seq, record.seq + isinstance(record, JournalEntry))
