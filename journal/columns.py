"""Step tables: numbers from the events of a segment, stored as columns so that they can be read quickly.

The caller names the columns and gives one function, which turns an event into a row of numbers or None. The writer
gathers the rows of a segment and writes them in a STEP_TABLE frame before the seal. A table contains nothing that the
events do not contain. It may therefore be missing, be ignored, or be made differently by a later version. `verify`
compares it with the rows that the same function returns for the events. Only the caller knows what the columns mean.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from journal.errors import Damage, JournalDamaged
from journal.files import OS_FILES, Files
from journal.format import BODY_BYTES_MAX, EVENTS, FrameKind
from journal.frame import Flaw, Frame, frame_bytes
from journal.records import events_of
from journal.scan import check_link, refusal, settle
from journal.segment import SegmentView, Walk, list_segments
from journal.tail import Decision

# Column types, by the array module's codes: 64 bits each, little-endian on disk.
TYPES: Final = {"q": "signed integers", "Q": "unsigned integers", "d": "floats"}
_VALUE_BYTES: Final = 8
_HEAD_BYTES_MAX: Final = 4096  # of a table without its data: names, types, lengths
_AHEAD_BYTES: Final = 1 << 20  # how far after zeros frames are looked for that must not be there
# Columns after those that the caller names, which rows may have or not.
FURTHER_MAX: Final = 64
# A segment with a quarter of a million rows is closed. The rows of one segment then take about 25 MB of memory.
ROWS_MAX: Final = 1 << 18

TableRow = Sequence[float]  # one number for each column; integers are allowed


class Tabulation(msgspec.Struct, frozen=True):
    """The columns of a table as `(name, type)`, with a type of `TYPES`, and the function from an event to its row.

    The function returns None if the event has no row. A row may have up to FURTHER_MAX values more than there are
    columns: these are floats, in columns named `further` and a number from 1. NaN: the row has no such value.
    """

    columns: tuple[tuple[str, str], ...]
    row: Callable[[bytes], TableRow | None]
    further: str = ""

    def column(self, index: int) -> tuple[str, str]:
        """Return name and type of a column, by its index in the longest row."""
        named = len(self.columns)
        return self.columns[index] if index < named else (f"{self.further}{index - named + 1}", "d")


class Columns(msgspec.Struct, frozen=True):
    """Numbers by column name. All columns have the same length and the order of the events."""

    by_name: dict[str, array[float]]

    def __len__(self) -> int:
        return len(next(iter(self.by_name.values()), ()))


class Table(msgspec.Struct, frozen=True):
    """The columns of a segment. `others`: number and frame's offset of each event without a row; None: not known."""

    columns: Columns
    others: tuple[tuple[int, int], ...] | None


class _Body(msgspec.Struct, frozen=True):
    """The body of a STEP_TABLE frame: each column is its name, its type, and its values as bytes.

    `others`: the events without a row, by sequence number and the offset of their frame, 8 bytes each. None: a version
    wrote the table that did not say.
    """

    rows: int
    columns: list[tuple[str, str, bytes]]
    others: bytes | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Body).decode


class Gathering:
    """The rows of one segment so far. If the row function raises, the segment gets no table; nothing else changes."""

    def __init__(self, tabulation: Tabulation) -> None:
        self._tabulation = tabulation
        self._row = tabulation.row
        self._columns = [_array(kind) for _, kind in tabulation.columns]
        self._others: array[int] = array("Q")
        self.lost = ""  # why the rows are not complete

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def add(self, events: Iterable[bytes], first_seq: int, offset: int) -> None:
        """Add the rows of the segment's next events: those from `first_seq` on, of the frame at `offset`."""
        if self.lost:
            return
        try:
            found = [*map(self._row, events)]
            rows = [row for row in found if row is not None]
            if len(rows) < len(found):
                for seq, row in enumerate(found, first_seq):
                    if row is None:
                        self._others.extend((seq, offset))
            if len(rows) > 1 and {*map(len, rows)} == {len(self._columns)}:
                # A frame of many steps, as a reader meets them: column by column takes a third of the time.
                for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
                    column.extend(values)
                return
            for one in rows:
                row = one if len(one) == len(self._columns) else self._fitted(one)
                for column, value in zip(self._columns, row, strict=True):
                    column.append(value)
        except Exception as error:  # noqa: BLE001 -- the caller's function may raise anything
            # The events are already durable and the table is derived, so the commit succeeds. A table with a missing
            # row would be wrong, so this segment gets none.
            self.lost = f"{type(error).__name__}: {error}"
            import logging  # a reader never gets here

            logging.getLogger(__name__).warning(
                "An event has no row (%s). The segment will be closed without its step table.", self.lost
            )

    def _fitted(self, row: TableRow) -> TableRow:
        """Return the row with NaN for the further values that it lacks. Add the columns that are missing for it."""
        named, width = len(self._tabulation.columns), len(row)
        if not named <= width <= named + (FURTHER_MAX if self._tabulation.further else 0):
            raise ValueError(f"a row of {width} values does not fit into {named} columns")
        for _ in range(len(self._columns), width):
            self._columns.append(_missing(len(self)))
        return (*row, *[math.nan] * (len(self._columns) - width))

    def add_frame(self, view: SegmentView, frame: Frame) -> None:
        """Add the rows of a frame that was read from disk."""
        if frame.header.kind == EVENTS:
            self.add(map(bytes, events_of(view, frame)), frame.header.first_seq, frame.header.offset)

    def room(self, more: int, alignment: int) -> int:
        """Return how many bytes the table takes at most in the file after `more` rows are added."""
        if self.lost:
            return 0
        # An upper bound, asked before a batch is written: a batch that leaves no room for the table goes to the next
        # segment.
        # Each event takes a row, or a place among the others, which is shorter.
        values = max(len(self._columns), 2) * (len(self) + more) + len(self._others)
        return frame_bytes(_HEAD_BYTES_MAX + _VALUE_BYTES * values, alignment)

    def body(self) -> bytes | None:
        """Return the body of a STEP_TABLE frame, or None if there are no rows."""
        if self.lost or not len(self):
            return None
        # Names and types are in the body, so a reader does not need to know the writer's version.
        columns = [(*self._tabulation.column(index), _to_bytes(data)) for index, data in enumerate(self._columns)]
        body = _encode(_Body(len(self), columns, _to_bytes(self._others)))
        # A table is optional. One that is too long for a frame is left out instead of failing the rotation.
        return body if len(body) <= BODY_BYTES_MAX else None

    def columns(self) -> Columns:
        """Return the rows so far, as columns."""
        return Columns({self._tabulation.column(index)[0]: data for index, data in enumerate(self._columns)})


def _array(kind: str) -> array[float]:
    # The type checker accepts an integer as a float. An array of floats does not, and raises if it is given one.
    empty: array[float] = array(kind)
    return empty


def _missing(rows: int) -> array[float]:
    return array("d", [math.nan]) * rows


def _to_bytes(data: array[float] | array[int]) -> bytes:
    if sys.byteorder == "big":
        # Swap a copy: rows are still added to the original.
        data = data[:]
        data.byteswap()
    return data.tobytes()


def table_of(view: SegmentView, frame: Frame) -> Table:
    """Return the decoded table. Raises JournalDamaged."""
    try:
        body = _decode(frame.body)
        # A type that is not in TYPES is left out here, so the count of columns no longer agrees and the table is
        # refused.
        columns: dict[str, array[float]] = {name: _array(kind) for name, kind, _ in body.columns if kind in TYPES}
        for name, _, data in body.columns:
            if name in columns:
                columns[name].frombytes(data)
        others: array[int] = array("Q", b"" if body.others is None else body.others)
        # safety: table-columns-one-length
        fits = all(len(data) == body.rows for data in columns.values()) and len(columns) == len(body.columns)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(view, frame, f"the step table does not decode: {error}") from error
    if not fits or len(others) % 2:
        raise _damaged(view, frame, "the columns of the step table do not match its own header")
    if sys.byteorder == "big":
        others.byteswap()
        for column in columns.values():
            column.byteswap()
    places = None if body.others is None else tuple(zip(others[::2], others[1::2], strict=True))
    return Table(Columns(columns), places)


def check_table(view: SegmentView, frame: Frame, gathered: Gathering | None, tabulation: Tabulation | None) -> None:
    """Raise JournalDamaged if the table does not decode, or if it differs from the rows gathered from the events.

    A table of another version may have other columns: then those are compared that both have.
    """
    found = table_of(view, frame)
    if gathered is None or tabulation is None:
        return
    # Compare bytes, not numbers: NaN is not equal to itself as a number, and a loss may be NaN.
    if found.others is not None and _has_columns(found.columns, tabulation):
        agrees = gathered.body() == frame.body
    else:
        mine = gathered.columns().by_name if not gathered.lost else {}
        both = [(data, mine[name]) for name, data in found.columns.by_name.items() if name in mine]
        agrees = all(one.tobytes() == other.tobytes() for one, other in both if one.typecode == other.typecode)
    if not agrees:
        raise _damaged(view, frame, "the step table disagrees with the events of its segment")


def _has_columns(found: Columns, tabulation: Tabulation) -> bool:
    """Return whether the table has the named columns, and further ones of the tabulation."""
    there, named = [(name, data.typecode) for name, data in found.by_name.items()], len(tabulation.columns)
    most = named + (FURTHER_MAX if tabulation.further else 0)
    return named <= len(there) <= most and there == [tabulation.column(index) for index in range(len(there))]


def _asked_for(found: Columns, tabulation: Tabulation) -> Columns | None:
    """Return the named columns and the further ones of a table, which may have more; None if it lacks one."""
    there, columns = found.by_name, tabulation.columns
    if any(name not in there or there[name].typecode != kind for name, kind in columns):
        return None
    further = (tabulation.column(index)[0] for index in range(len(columns), len(columns) + FURTHER_MAX))
    names = [*(name for name, _ in columns), *(takewhile(there.__contains__, further) if tabulation.further else ())]
    return Columns({name: there[name] for name in names})


def _damaged(view: SegmentView, frame: Frame, what: str) -> JournalDamaged:
    return JournalDamaged(what, damage=Damage.INDEX, path=view.path, offset=frame.header.offset)


def read_columns(folder: Path, tabulation: Tabulation, *, files: Files = OS_FILES) -> Columns:
    """Return the columns of a whole journal: from a segment's table if it has one, else from its events. Needs no lock.

    If the segments have tables, a million rows take about a tenth of a second. Raises JournalMissing, JournalDamaged,
    JournalTooNew, OSError.
    """
    whole = Columns({name: _array(kind) for name, kind in tabulation.columns})
    names = list_segments(files, folder)
    successor: SegmentView | None = None
    views: list[Columns] = []
    # Read the newest segment first: a segment's table is trusted only through its successor's header.
    for name in reversed(names):
        view = SegmentView(files, name)
        try:
            if successor is not None:
                check_link(view, successor)  # safety: columns-follow-links
            table = table_at_end(view, successor)
            found = _asked_for(table.columns, tabulation) if table is not None else None
            if found is None:
                # The newest segment has no table yet, and older ones may have another version's columns.
                found = _from_events(view, successor, tabulation)
        finally:
            view.close()
            if successor is not None:
                successor.close()  # its first frame may have been asked for
        views.append(found)
        successor = view
    # Back in the order of the journal. Each part is let go when it has been added: two copies of all would be too much.
    while views:
        part = views.pop()
        for column in part.by_name:
            if column not in whole.by_name:
                whole.by_name[column] = _missing(len(whole))
        rows = len(part)
        for column, data in whole.by_name.items():
            data.extend(part.by_name[column] if column in part.by_name else _missing(rows))
    return whole


def table_at_end(view: SegmentView, successor: SegmentView | None) -> Table | None:
    """Return the table of a sealed segment, or None if it has none. The successor's header names the seal after it."""
    if successor is None:
        return None
    seal = view.frame_at(successor.header.previous_last_offset)
    if isinstance(seal, Flaw) or seal.header.kind != FrameKind.SEAL:
        return None
    # The chain value binds the table to the seal. A table that somebody edited and gave good checksums is not used.
    table = view.frame_at(seal.header.previous_offset)
    if (  # safety: table-in-chain
        isinstance(table, Flaw)
        or table.header.kind != FrameKind.STEP_TABLE
        or table.chain != seal.header.previous_chain
    ):
        return None
    return table_of(view, table)


def _from_events(view: SegmentView, successor: SegmentView | None, tabulation: Tabulation) -> Columns:
    gathering = Gathering(tabulation)
    # The successor says where this segment ends. Frames after that point belong to a failed write and are void.
    view.limit = successor.header.previous_length if successor is not None else None
    walk, stop = Walk(view), None
    while stop is None:
        for frame in walk:
            gathering.add_frame(view, frame)
        # A damaged table or seal after the last event costs no row.
        if successor is not None and walk.tail.last_seq == successor.header.previous_last_seq:
            break
        # None: a live writer has added a frame meanwhile.
        stop = settle(walk, lambda: successor, _AHEAD_BYTES)
        # Rows after the damage would be missing without a word.
        if stop is not None and stop.decision not in (Decision.END, Decision.TORN):  # safety: columns-are-whole
            raise refusal(view, stop)
    if gathering.lost:
        what = f"an event of the segment has no row of numbers: {gathering.lost}"
        raise JournalDamaged(what, damage=Damage.BODY, path=view.path)
    return gathering.columns()
