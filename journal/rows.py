"""Read a journal by the tables of its sealed segments, for a fold that takes many events at once.

A table has the numbers of most events. The other events are read from their frames, whose places the table names. A
segment without such a table, and the newest one, are read frame by frame.

A table is used only if it is in the hash chain, and another event only if the frame after its own names its hash. The
frames of events that have rows are not read: `verify` does that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from journal.columns import table_at_end
from journal.errors import UNREADABLE, Damage, JournalDamaged
from journal.format import EVENTS
from journal.frame import Flaw, Frame, frame_bytes
from journal.reader import Reader
from journal.records import JournalEntry, Mark, entries_of
from journal.scan import check_link
from journal.segment import SegmentView, list_segments


class Values(Protocol):
    """The rows of a table in the form that the caller wants."""

    def part(self, first: int, last: int) -> Self:
        """Return the rows from index `first` up to `last`, which is not one of them."""


V = TypeVar("V", bound=Values)


class Rows(msgspec.Struct, Generic[V], frozen=True):
    """Events that follow each other, as rows of a table. `seq`: the number of the first one; `count`: how many."""

    seq: int
    count: int
    values: V


class _Unread:
    """Rows that nobody looks at."""

    def part(self, first: int, last: int) -> Self:
        """Return them."""
        del first, last
        return self


_UNREAD: Final = _Unread()
# So many events without a row are read before the first of them is yielded.
_READ_AHEAD: Final = 64


class _Sealed(NamedTuple):
    """A segment that is read by its table: its last event, its events without a row, its rows."""

    view: SegmentView
    last_seq: int
    others: Sequence[tuple[int, int]]
    rows: int
    values: Any


class _Frames(NamedTuple):
    """Events that are read frame by frame: those after one up to another; `last_seq` None: to the journal's end."""

    after_seq: int
    last_seq: int | None


def rows_and_records(
    reader: Reader, read: Callable[[Mapping[str, array[float]]], V | None], after_seq: int = 0
) -> Iterator[JournalEntry | Mark | Rows[V]]:
    """Yield everything after `after_seq` in order, as `Reader.records`, but rows of tables instead of their events.

    `read` gives the columns of a table another form, or None if they do not have it: then the segment is read frame by
    frame. Marks between the events of a table are left out. Moves the reader's cursor. Raises JournalDamaged,
    JournalTooNew, OSError.
    """
    for part in _parts(reader, read, after_seq):
        if isinstance(part, _Sealed):
            last_seq = part.view.header.first_seq - 1
            try:
                for record in _of_segment(part):
                    last_seq = record.seq + (record.count - 1 if isinstance(record, Rows) else 0)
                    yield record
            except JournalDamaged as error:
                if error.damage not in (Damage.FRAME, Damage.PACKED):
                    raise
                # What is before a frame that cannot be read can be: some were read ahead.
                yield from _by_frames(reader, _Frames(last_seq, part.last_seq))
                raise
        else:
            yield from _by_frames(reader, part)


def _by_frames(reader: Reader, part: _Frames) -> Iterator[JournalEntry | Mark]:
    for record in reader.records(part.after_seq):
        if part.last_seq is not None and record.seq > part.last_seq:
            return
        yield record


def others(reader: Reader, names: Iterable[str], is_row: Callable[[bytes], bool]) -> Iterator[tuple[int, JournalEntry]]:
    """Yield the events that are no rows, each with the number of rows before it, as `Reader.without`.

    `names`: the columns of a table that has a row of each event that `is_row` accepts by its first bytes. Without such
    a table a segment is read frame by frame. Raises as `rows_and_records`.
    """
    before, wanted = 0, frozenset(names)
    for part in _parts(reader, lambda columns: _UNREAD if wanted <= columns.keys() else None, 0):
        if isinstance(part, _Sealed):
            for record in _of_segment(part):
                if isinstance(record, JournalEntry):
                    yield before, record
                else:
                    before += record.count
        else:
            found = 0
            for rows, entry in reader.seek(seq=part.after_seq + 1).without(is_row, part.last_seq):
                found += 1
                yield before + rows, entry
            if part.last_seq is not None:
                before += part.last_seq - part.after_seq - found


def _parts(
    reader: Reader, read: Callable[[Mapping[str, array[float]]], V | None], after_seq: int
) -> Iterator[_Sealed | _Frames]:
    for name, following in pairwise(list_segments(reader.files, reader.folder)):
        if name.first_seq <= after_seq:
            continue  # begun before this: its rest is read frame by frame
        # Before the table is read: the caller may stop in the segment before.
        if name.first_seq > after_seq + 1:
            yield _Frames(after_seq, name.first_seq - 1)
            after_seq = name.first_seq - 1
        view, successor = SegmentView(reader.files, name), SegmentView(reader.files, following)
        try:
            check_link(view, successor)  # safety: rows-follow-links
            table = table_at_end(view, successor)
            if table is None or table.others is None or (values := read(table.columns.by_name)) is None:
                continue
        except JournalDamaged:
            continue  # frame by frame up to the damage, which is told there
        finally:
            # Before anything is yielded: a caller that raises would keep them open.
            view.close()
            successor.close()
        after_seq = successor.header.previous_last_seq
        yield _Sealed(view, after_seq, table.others, len(table.columns), values)
    yield _Frames(after_seq, None)


def _of_segment(sealed: _Sealed) -> Iterator[JournalEntry | Rows[Any]]:
    view, last_seq, rows, values = sealed.view, sealed.last_seq, sealed.rows, sealed.values
    seq, row = view.header.first_seq, 0
    for entry in chain(_others_of(sealed), (None,)):
        other = last_seq + 1 if entry is None else entry.seq
        count = other - seq
        if count < 0 or row + count > rows:
            break
        if count:
            yield Rows(seq, count, values if count == rows else values.part(row, row + count))
        seq, row = other, row + count
        if entry is not None:
            yield entry
            seq += 1
    # The rows and the other events are all events of the segment, or the table is none of our writer's.
    if row != rows or seq != last_seq + 1:  # safety: rows-are-all-events
        raise _not_of(view, seq)


def _others_of(sealed: _Sealed) -> Iterator[JournalEntry]:
    """Yield the events without a row. Some are read at a time, and the file is closed before they are yielded."""
    view = sealed.view
    for first in range(0, len(sealed.others), _READ_AHEAD):
        entries: list[JournalEntry] = []
        frame: Frame | None = None
        try:
            for seq, offset in sealed.others[first : first + _READ_AHEAD]:
                if frame is None or frame.header.offset != offset:
                    frame = _frame_at(view, offset)
                entry = next(iter(entries_of(view, frame, seq - 1)), None)
                if entry is None or entry.seq != seq:
                    raise _not_of(view, seq)
                entries.append(entry)
        finally:
            view.close()
        yield from entries


def _not_of(view: SegmentView, seq: int) -> JournalDamaged:
    what = "the step table does not name the events of its segment"
    return JournalDamaged(what, damage=Damage.INDEX, path=view.path, seq=seq)


def _frame_at(view: SegmentView, offset: int) -> Frame:
    """Return the EVENTS frame at an offset. Raises JournalDamaged unless the frame after it names its hash."""
    frame = view.frame_at(offset)
    if isinstance(frame, Flaw):
        raise JournalDamaged(UNREADABLE, damage=Damage.FRAME, path=view.path, offset=offset)
    after = view.header_at(offset + frame_bytes(frame.header.body_bytes, view.alignment))
    # safety: row-frames-in-chain
    if frame.header.kind != EVENTS or isinstance(after, Flaw) or after.previous_chain != frame.chain:
        raise JournalDamaged(UNREADABLE, damage=Damage.CHAIN, path=view.path, offset=offset)
    return frame
