"""The events of a run: all, some, the last few, backwards, as they come.

Promises: memory is bounded by what is asked for, not by the journal; the last N of a million cost N. Events are read as
maps, so a type of a newer version is shown like any other. It must not know: terminals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from journal import Entry
from journal.reader import Reader
from tolariad.forensics.places import Kind, Place

_PAGE_EVENTS: Final = 4096
_GROWTH: Final = 8


class Brief(msgspec.Struct, frozen=True, gc=False):
    """The few fields by which events are chosen and chained; the rest is not decoded."""

    type: str
    cause: int = 0
    root: int = 0
    step: int | None = None
    epoch: int | None = None
    branch: int = 0
    id: str | None = None


brief = msgspec.msgpack.Decoder(Brief, strict=False).decode
decode_fields: Final[Callable[[msgspec.Raw], dict[str, Any]]] = msgspec.msgpack.Decoder(dict[str, Any]).decode


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which events. `types`: names or beginnings of names; `pattern`: searched in the event's text."""

    types: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    since: Place | None = None
    until: Place | None = None
    lineage: bool = False


def first_at(reader: Reader, place: Place) -> int:
    """The number of the first event at or behind a place; one behind the last event where there is none."""
    if place.kind is Kind.SEQ:
        return max(1, place.value)
    reader.seek(**{place.kind.value: place.value})
    first = 0
    for entry in reader:
        first = first or entry.seq
        if place.kind is Kind.TIME:
            return entry.seq
        # A batch has the labels of its last event: look for the very event, else the batch's first stands.
        told = brief(entry.event)
        reached = told.step if place.kind is Kind.STEP else told.epoch
        if reached is not None and reached >= place.value:
            return entry.seq
        if (entry.step if place.kind is Kind.STEP else entry.epoch) > place.value:
            return first
    return first or reader.last_seq + 1


def last_at(reader: Reader, place: Place) -> int:
    """The number of the last event that belongs to a place; 0 where the journal begins behind it."""
    if place.kind is Kind.SEQ:
        return min(place.value, reader.last_seq)
    return first_at(reader, Place(place.kind, place.value + 1)) - 1


def bounds(reader: Reader, query: Query) -> tuple[int, int | None]:
    """First and last sequence number of a query; no last one where it is open."""
    first = first_at(reader, query.since) if query.since else 1
    return first, last_at(reader, query.until) if query.until else None


def forwards(reader: Reader, query: Query) -> Iterator[Entry]:
    """Matching entries in order, up to the end as it is now."""
    first, last = bounds(reader, query)
    wanted = matcher(reader, query)
    reader.seek(seq=first)
    for entry in reader:
        if last is not None and entry.seq > last:
            return
        if wanted(entry):
            yield entry


def backwards(reader: Reader, query: Query) -> Iterator[Entry]:
    """Matching entries, newest first. The first pages are small, so that a few cost little."""
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


def last_events(reader: Reader, query: Query, count: int) -> list[Entry]:
    """The last `count` matching entries, in order."""
    if query == Query():
        return reader.tail(count) if count else []
    return list(islice(backwards(reader, query), count))[::-1]


def follow(reader: Reader, query: Query, after_seq: int, sleep: Callable[[float], None]) -> Iterator[Entry]:
    """Matching entries behind `after_seq`, and those that come; ends behind `until`."""
    _, last = bounds(reader, query)
    wanted = matcher(reader, query)
    reader.seek(seq=after_seq + 1)
    for entry in reader.follow(sleep=sleep):
        if last is not None and entry.seq > last:
            return
        if wanted(entry):
            yield entry


def matcher(reader: Reader, query: Query) -> Callable[[Entry], bool]:
    """The part of a query that looks at each event."""
    tests: list[Callable[[Entry], bool]] = []
    types, pattern = query.types, query.pattern
    if types:
        tests.append(lambda entry: brief(entry.event).type.startswith(types))
    if query.lineage:
        tests.append(_living(first_steps(reader)))
    if pattern is not None:
        tests.append(lambda entry: pattern.search(searched_text(decode_fields(entry.event))) is not None)
    return lambda entry: all(test(entry) for test in tests)


def searched_text(fields: dict[str, Any]) -> str:
    """What a pattern is searched in: every name and value, as text."""
    return " ".join(f"{name}={value}" for name, value in fields.items())


def first_steps(entries: Iterable[Entry]) -> dict[int, int]:
    """The first step of each branch."""
    found: dict[int, int] = {}
    for entry in entries:
        told = brief(entry.event)
        if told.step is not None and told.type == "StepCompleted":
            found.setdefault(told.branch, told.step)
        elif told.step is not None and told.type == "RolledBack":
            # Also where nothing was trained on the new branch yet.
            found.setdefault(told.branch, told.step + 1)
    return found


def _living(first: dict[int, int]) -> Callable[[Entry], bool]:
    """A step is abandoned where a later branch began at or before it; everything else is kept."""

    def wanted(entry: Entry) -> bool:
        told = brief(entry.event)
        if told.step is None or told.type != "StepCompleted":
            return True
        return all(begin > told.step for branch, begin in first.items() if branch > told.branch)

    return wanted
