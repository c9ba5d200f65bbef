"""Tables beside the frames: what a caller wants to find quickly of its events, as columns of numbers.

A caller says which columns there are and gives one function, from an event to its row or to None. The writer gathers the
rows of a segment and puts them into a STEP_TABLE frame before the seal. Everything in such a table can be had from the
events too, so it may be left out, ignored, or made in another way by a later version; `verify` compares it with what the
same function makes of the events. What the columns mean is the caller's business.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from journal.errors import Damage, JournalDamaged
from journal.files import OS_FILES, Files
from journal.format import BODY_BYTES_MAX, FrameKind
from journal.frame import Flaw, Frame, frame_bytes
from journal.records import events_of
from journal.segment import SegmentView, Walk, list_segments

_log = logging.getLogger(__name__)
# Types of columns, as the array module names them: 64 bits each, little-endian on disk.
TYPES: Final = {"q": "signed integers", "Q": "unsigned integers", "d": "floats"}
_VALUE_BYTES: Final = 8
_HEAD_BYTES_MAX: Final = 4096  # of a table without its data: names, types, lengths
# Half a million rows, some 25 MB while they are gathered: a segment that has so many is closed.
ROWS_MAX: Final = 1 << 19
_EVENTS: Final = int(FrameKind.EVENTS)

Row = Sequence[float]  # of as many numbers as there are columns; integers count


class Tabulation(msgspec.Struct, frozen=True):
    """Which columns, `(name, type)` with a type of `TYPES`, and what an event contributes to them: a row, or None."""

    columns: tuple[tuple[str, str], ...]
    row: Callable[[bytes], Row | None]


class Columns(msgspec.Struct, frozen=True):
    """Numbers by column name, all of one length, in the order of the events they come from."""

    by_name: dict[str, array[float]]

    def __len__(self) -> int:
        return len(next(iter(self.by_name.values()), ()))


class _Body(msgspec.Struct, frozen=True):
    """The body of a STEP_TABLE frame: each column is its name, its type, and its values as bytes."""

    rows: int
    columns: list[tuple[str, str, bytes]]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Body).decode


class Gathering:
    """The rows of one segment so far. A row function that raises costs this segment its table, and nothing else."""

    def __init__(self, tabulation: Tabulation) -> None:
        self._row = tabulation.row
        self._names = tabulation.columns
        self._columns = [_array(kind) for _, kind in tabulation.columns]
        self._lost = False

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def add(self, events: Iterable[bytes]) -> None:
        """Take what the next events of the segment contribute."""
        if self._lost:
            return
        try:
            for event in events:
                row = self._row(event)
                if row is not None:
                    for column, value in zip(self._columns, row, strict=True):
                        column.append(value)
        except Exception:  # noqa: BLE001 -- the caller's function may raise anything
            # The events are durable already, and a table is only a convenience: nobody is refused anything.
            self._lost = True
            _log.exception("the rows of a segment are not gathered; it is closed without its table")

    def add_frame(self, view: SegmentView, frame: Frame) -> None:
        """The same for a frame that was read."""
        if frame.header.kind == _EVENTS:
            self.add(map(bytes, events_of(view, frame)))

    def room(self, more: int, alignment: int) -> int:
        """What the table takes at most in a file with so many more rows."""
        if self._lost:
            return 0
        return frame_bytes(_HEAD_BYTES_MAX + len(self._columns) * _VALUE_BYTES * (len(self) + more), alignment)

    def body(self) -> bytes | None:
        """The body of a STEP_TABLE frame; None where there is nothing to put into one."""
        if self._lost or not len(self):
            return None
        columns = [(name, kind, _to_bytes(data)) for (name, kind), data in zip(self._names, self._columns, strict=True)]
        body = _encode(_Body(len(self), columns))
        return body if len(body) <= BODY_BYTES_MAX else None

    def columns(self) -> Columns:
        """What was gathered."""
        return Columns({name: data for (name, _), data in zip(self._names, self._columns, strict=True)})


def _array(kind: str) -> array[float]:
    # For the type checker an integer is a float; for the array it is not, and it says so when it is given one.
    empty: array[float] = array(kind)
    return empty


def _to_bytes(data: array[float]) -> bytes:
    if sys.byteorder == "big":
        data = data[:]
        data.byteswap()
    return data.tobytes()


def table_of(view: SegmentView, frame: Frame) -> Columns:
    """The decoded table. Raises JournalDamaged."""
    try:
        body = _decode(frame.body)
        columns: dict[str, array[float]] = {name: _array(kind) for name, kind, _ in body.columns if kind in TYPES}
        for name, _, data in body.columns:
            if name in columns:
                columns[name].frombytes(data)
        fits = all(len(data) == body.rows for data in columns.values()) and len(columns) == len(body.columns)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(view, frame, f"the step table does not decode: {error}") from error
    if not fits:
        raise _damaged(view, frame, "the columns of the step table are not those it promises")
    if sys.byteorder == "big":
        for column in columns.values():
            column.byteswap()
    return Columns(columns)


def check_table(view: SegmentView, frame: Frame, gathered: Gathering | None, tabulation: Tabulation | None) -> None:
    """Raise JournalDamaged unless a table decodes and, where its columns are those asked for, holds what was gathered."""
    found = table_of(view, frame)
    if gathered is None or tabulation is None or not _same_columns(found, tabulation):
        return
    # Bit for bit: a loss that is not a number is equal to itself here.
    if gathered.body() != frame.body:
        raise _damaged(view, frame, "the step table disagrees with the events it sums up")


def _same_columns(found: Columns, tabulation: Tabulation) -> bool:
    return tuple((name, data.typecode) for name, data in found.by_name.items()) == tabulation.columns


def _damaged(view: SegmentView, frame: Frame, what: str) -> JournalDamaged:
    return JournalDamaged(what, damage=Damage.INDEX, path=view.path, offset=frame.header.offset)


def read_columns(folder: Path, tabulation: Tabulation, *, files: Files = OS_FILES) -> Columns:
    """The columns of a whole journal: out of the tables where they are, else out of the events. Needs no lock.

    A million rows take some tenth of a second where segments have their tables. Raises JournalMissing, JournalDamaged,
    JournalTooNew, OSError.
    """
    whole = Columns({name: _array(kind) for name, kind in tabulation.columns})
    names = list_segments(files, folder)
    successor: SegmentView | None = None
    views: list[Columns] = []
    for name in reversed(names):
        view = SegmentView(files, name)
        try:
            found = _table_at_end(view, successor)
            if found is None or not _same_columns(found, tabulation):
                found = _from_events(view, successor, tabulation)
        finally:
            view.close()
        views.append(found)
        successor = view
    for part in reversed(views):
        for column, data in part.by_name.items():
            whole.by_name[column].extend(data)
    return whole


def _table_at_end(view: SegmentView, successor: SegmentView | None) -> Columns | None:
    """The table of a sealed segment, behind which lies the seal that its successor names. None where there is none."""
    if successor is None:
        return None
    seal = view.frame_at(successor.header.previous_last_offset)
    if isinstance(seal, Flaw) or seal.header.kind != FrameKind.SEAL:
        return None
    table = view.frame_at(seal.header.previous_offset)
    if (
        isinstance(table, Flaw)
        or table.header.kind != FrameKind.STEP_TABLE
        or table.chain != seal.header.previous_chain
    ):
        return None
    return table_of(view, table)


def _from_events(view: SegmentView, successor: SegmentView | None, tabulation: Tabulation) -> Columns:
    gathering = Gathering(tabulation)
    view.limit = successor.header.previous_length if successor is not None else None
    for frame in Walk(view):
        gathering.add_frame(view, frame)
    return gathering.columns()
