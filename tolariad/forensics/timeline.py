"""The events of a run: all, a selection, the last N, newest first, or as they are recorded.

Promises: memory is bounded by the request, not by the journal. The last N of a million events cost N reads. Events are
decoded as maps, so an event type of a newer version is shown like any other. No event ends a listing, whatever its
fields hold: one that cannot be read is shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, get_type_hints

import msgspec

from journal import JournalEntry
from journal.reader import Reader
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.words import in_words

_PAGE_EVENTS: Final = 4096
_GROWTH: Final = 8


class BriefOrder(msgspec.Struct, frozen=True, gc=False):
    """The same of a boundary order inside an event."""

    type: str = ""
    slot: str | None = None


class Brief(msgspec.Struct, frozen=True, gc=False):
    """The fields by which events are selected and linked. The other fields are not decoded."""

    type: str
    cause: int = 0
    root: int = 0
    step: int | None = None
    epoch: int | None = None
    branch: int = 0
    id: str | None = None
    reason: str | None = None
    finding: str | None = None
    checkpoint: Any = None
    # Of a seed, a name; of a snapshot, a number.
    slot: str | int | None = None
    order: BriefOrder | None = None
    rank: int = 0
    ranks: Any = None

    @property
    def name(self) -> str:
        """Return the event's type, with that of the order inside it: `OrderActed:SetRate`."""
        return f"{self.type}:{self.order.type}" if self.order is not None else self.type

    def is_of(self, kind: str) -> bool:
        """Return whether it is of this type.

        `Type:word`: of this type, with that reason or finding, or of that slot. `Type:resumed`: with a checkpoint that
        it went on from after an end, and not within a rollback. `Type:ranked`: of one of several ranks. `Type:Order`
        and `Type:Order:slot`: of an event with a boundary order.
        """
        name, _, word = kind.partition(":")
        if self.order is not None:
            of, _, slot = word.partition(":")
            return self.type == name and of in ("", self.order.type) and slot in ("", self.order.slot)
        fits = word in ("", self.reason, self.finding, self.slot)
        fits = fits or (word == "resumed" and bool(self.checkpoint) and not self.cause)
        fits = fits or (word == "ranked" and bool(self.rank or self.ranks))
        return self.type == name and fits


# What a decoder raises for bytes that it cannot read as the wanted type: msgspec's own errors are ValueErrors.
UNREADABLE: Final = (ValueError, RecursionError)
# The type of an event that is shown although it cannot be read.
_NO_TYPE: Final = "(unreadable)"
# A value within so many others is none of ours. Every function that shows one calls itself for each of them.
_DEPTH_MAX: Final = 64
_decode_brief: Final = msgspec.msgpack.Decoder(Brief, strict=False).decode
_decode_map: Final[Callable[[msgspec.Raw], dict[str, Any]]] = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_any: Final = msgspec.msgpack.Decoder().decode


def brief(event: msgspec.Raw) -> Brief:
    """Return the fields by which an event is selected. One of another type than ours counts as absent."""
    try:
        return _decode_brief(event)
    except UNREADABLE:
        return _brief_of(decode_fields(event))


def _brief_of(fields: dict[str, Any]) -> Brief:
    kinds = get_type_hints(Brief)
    values: dict[str, Any] = {"type": str(fields.get("type", ""))}
    for name in kinds.keys() & fields.keys() - values.keys():
        try:
            values[name] = msgspec.convert(fields[name], kinds[name], strict=False)
        except UNREADABLE:
            continue
    return Brief(**values)


def decode_fields(event: msgspec.Raw) -> dict[str, Any]:
    """Return an event's fields by name. Of one that is no map, or cannot be read, only that."""
    try:
        fields = _decode_map(event)
    except UNREADABLE:
        fields = _fields_of(event)
    # Most events hold no value with others in it.
    if any(isinstance(value, dict | list | tuple) and _is_deep(value) for value in fields.values()):
        return _unreadable(event, "its values are nested too deeply")
    return fields


def _fields_of(event: msgspec.Raw) -> dict[str, Any]:
    try:
        found = _decode_any(event)
    except UNREADABLE as error:
        return _unreadable(event, str(error))
    if not isinstance(found, dict):
        return _unreadable(event, "it is no map")
    return {str(name): value for name, value in found.items()}


def _unreadable(event: msgspec.Raw, why: str) -> dict[str, Any]:
    return {"type": _NO_TYPE, "why": why, "bytes": len(bytes(event))}


def _is_deep(value: Any) -> bool:
    """Return whether values lie within each other more than `_DEPTH_MAX` times."""
    level = [value]
    for _ in range(_DEPTH_MAX):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in level if isinstance(one, dict | list | tuple)]
        if not level:
            return False
    return True


def number_in(fields: dict[str, Any], name: str) -> int | None:
    """Return a whole number of an event; None if it has none of this name."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of events. `types`: prefixes of type names. `pattern` is searched in the event's text.

    `without`: names of types that are left out.
    """

    types: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    since: JournalPosition | None = None
    until: JournalPosition | None = None
    lineage: bool = False


def first_at(reader: Reader, position: JournalPosition) -> int:
    """Return the number of the first event at or after a position; last number + 1 if there is none."""
    if position.kind is PositionKind.SEQ:
        return max(1, position.value)
    reader.seek(**{position.kind.value: position.value})
    first, label = 0, 0
    for entry in reader:
        if position.kind is PositionKind.TIME:
            return entry.seq
        # A frame carries step and epoch of its last event only, and may hold many steps. So look into the events
        # themselves; if none of the frame has the position, its first event is the answer.
        of_frame = entry.step if position.kind is PositionKind.STEP else entry.epoch
        first, label = (first, label) if first else (entry.seq, of_frame)
        told = brief(entry.event)
        reached = told.step if position.kind is PositionKind.STEP else told.epoch
        if reached is not None and reached >= position.value:
            return entry.seq
        if label > position.value and of_frame != label:
            return first
    return first or reader.last_seq + 1


def entry_of_step(reader: Reader, step: int) -> JournalEntry | None:
    """Return the first record of a step, or None if the journal has none."""
    for entry in reader.seek(step=step):
        told = brief(entry.event)
        if told.type != "StepCompleted" or told.step is None:
            continue
        # The label of a frame is that of its last event, so only the events say when the step has been passed.
        if told.step >= step:
            return entry if told.step == step else None
    return None


def last_at(reader: Reader, position: JournalPosition) -> int:
    """Return the number of the last event that belongs to a position; 0 if the journal begins after it."""
    if position.kind is PositionKind.SEQ:
        return min(position.value, reader.last_seq)
    return first_at(reader, JournalPosition(position.kind, position.value + 1)) - 1


def bounds(reader: Reader, query: Query) -> tuple[int, int | None]:
    """Return the first and last sequence number of a query. The last is None if the query has no end."""
    first = first_at(reader, query.since) if query.since else 1
    return first, last_at(reader, query.until) if query.until else None


def forwards(reader: Reader, query: Query) -> Iterator[JournalEntry]:
    """Yield matching entries in order, up to the current end of the journal."""
    first, last = bounds(reader, query)
    wanted = matcher(reader, query)
    yield from _matching(reader.seek(seq=first), last, wanted)


def _matching(
    entries: Iterable[JournalEntry], last: int | None, wanted: Callable[[JournalEntry], bool]
) -> Iterator[JournalEntry]:
    yield from (entry for entry in up_to(entries, last) if wanted(entry))


def up_to(entries: Iterable[JournalEntry], last: int | None) -> Iterator[JournalEntry]:
    """Yield the entries up to this number, or all. What comes after it is not read: it may be damaged."""
    for entry in entries:
        if last is not None and entry.seq > last:
            return
        yield entry
        if last is not None and entry.seq == last:
            return


def backwards(reader: Reader, query: Query) -> Iterator[JournalEntry]:
    """Yield matching entries, newest first. Pages grow, so that the first few entries cost little."""
    first, last = bounds(reader, query)
    wanted = matcher(reader, query)
    end = reader.last_seq if last is None else last
    page = 32
    while end >= first:
        start = max(first, end - page + 1)
        reader.seek(seq=start)
        entries = list(islice(reader, end - start + 1))
        yield from (entry for entry in reversed(entries) if wanted(entry))
        end, page = start - 1, min(_PAGE_EVENTS, page * _GROWTH)


def last_events(reader: Reader, query: Query, count: int) -> list[JournalEntry]:
    """Return the last `count` matching entries, in order."""
    if query == Query():
        return reader.tail(count) if count else []
    return list(islice(backwards(reader, query), count))[::-1]


def follow(reader: Reader, query: Query, after_seq: int, sleep: Callable[[float], None]) -> Iterator[JournalEntry]:
    """Yield matching entries after `after_seq`, then new ones as they are recorded. Ends after `until`."""
    _, last = bounds(reader, query)
    wanted = matcher(reader, query)
    yield from _matching(reader.seek(seq=after_seq + 1).follow(sleep=sleep), last, wanted)


def matcher(reader: Reader, query: Query) -> Callable[[JournalEntry], bool]:
    """Return the test that the query applies to each event (its range is not part of it)."""
    tests: list[Callable[[JournalEntry], bool]] = []
    types, pattern, without = query.types, query.pattern, query.without
    if without:
        tests.append(lambda entry: brief(entry.event).type not in without)
    if types:
        tests.append(lambda entry: _is_named(brief(entry.event), types))
    if query.lineage:
        tests.append(_living(first_steps(reader)))
    if pattern is not None:
        tests.append(lambda entry: pattern.search(searched_text(decode_fields(entry.event))) is not None)
    return lambda entry: all(test(entry) for test in tests)


def _is_named(told: Brief, types: tuple[str, ...]) -> bool:
    """Return whether the event's name, or that of the order inside it, begins with one of these."""
    return told.name.startswith(types) or (told.order is not None and told.order.type.startswith(types))


def searched_text(fields: dict[str, Any]) -> str:
    """Return the text that a pattern is searched in: every field as `name=value`, and the event's sentence.

    The fields of a boundary order inside it are searched as its own.
    """
    order = fields.get("order")
    every = {**fields, **order} if isinstance(order, dict) else fields
    return " ".join([*(f"{name}={value}" for name, value in every.items()), in_words(fields)])


def first_steps(entries: Iterable[JournalEntry]) -> dict[int, int]:
    """Return the first step of each branch."""
    found: dict[int, int] = {}
    for entry in entries:
        told = brief(entry.event)
        if told.step is not None and told.type == "StepCompleted":
            found.setdefault(told.branch, told.step)
        elif told.step is not None and told.type == "RolledBack":
            # A branch counts from its fork, even if no step has been trained on it yet.
            found.setdefault(told.branch, told.step + 1)
    return found


def _living(first: dict[int, int]) -> Callable[[JournalEntry], bool]:
    """Return a test that rejects abandoned steps: those at or after the first step of a later branch."""

    def wanted(entry: JournalEntry) -> bool:
        told = brief(entry.event)
        if told.step is None or told.type != "StepCompleted":
            return True
        return all(begin > told.step for branch, begin in first.items() if branch > told.branch)

    return wanted
