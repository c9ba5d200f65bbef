"""What stood around an event: the level of loss and norm, the checkpoints, the end of the trainer before, and what
followed from it.

Promises: each search is bounded, here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from journal import JournalEntry
from journal.reader import Reader
from tolariad.core.calc.steps.table import step_row
from tolariad.forensics.bookkeeping import BOOKKEEPING
from tolariad.forensics.level import STEPS_AFTER, STEPS_BEFORE, Level, Step, level_around
from tolariad.forensics.links import Link, link_of
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.timeline import UNREADABLE, Query, backwards, brief, up_to
from tolariad.forensics.topics import STARTS, UNUSUAL, WAYS_TO_END

_SEARCHED_MAX: Final = 20_000
_AROUND_EVENTS: Final = 2000
_AROUND_MAX: Final = 8
_CONSEQUENCES_MAX: Final = 50
_COMMITTED: Final = ("CheckpointCommitted",)


def until(seq: int) -> Query:
    """Return the query for all events up to this one."""
    return Query(until=JournalPosition(PositionKind.SEQ, seq))


def level_of(reader: Reader, event: Link, until_seq: int | None) -> Level | None:
    """Return loss and norm around an unusual step; None for any other event."""
    if event.fields.get("type") not in UNUSUAL:
        return None
    earlier = islice(backwards(reader, until(event.seq - 1)), _AROUND_EVENTS)
    before = list(islice(_steps(earlier), STEPS_BEFORE))[::-1]
    after = islice(_steps(_after(reader, event, until_seq)), STEPS_AFTER)
    return level_around(before, list(after))


def _steps(entries: Iterable[JournalEntry]) -> Iterator[Step]:
    for entry in entries:
        with contextlib.suppress(*UNREADABLE):
            if (row := step_row(bytes(entry.event))) is not None:
                yield Step(int(row[0]), row[3], row[4])


def kept_around(reader: Reader, event: Link, until_seq: int | None) -> tuple[Link, ...]:
    """Return the checkpoints that were committed last before an unusual step, and first after it."""
    if event.fields.get("type") not in UNUSUAL:
        return ()
    # One after the other: both move the same reader.
    before = _first(backwards(reader, until(event.seq - 1)), _COMMITTED)
    return before + _first(_after(reader, event, until_seq), _COMMITTED)


def ended_before(reader: Reader, event: Link) -> tuple[Link, ...]:
    """Return how the process before a start ended; empty for any other event, and for a first start."""
    if event.fields.get("type") not in STARTS:
        return ()
    return _first(backwards(reader, until(event.seq - 1)), WAYS_TO_END)


def shortly_before(reader: Reader, seq: int) -> tuple[Link, ...]:
    """Return the newest events before one, in order, without those that come all the time."""
    before = islice(backwards(reader, until(seq - 1)), _AROUND_EVENTS)
    others = (one for one in before if brief(one.event).type not in BOOKKEEPING)
    return tuple(link_of(one) for one in islice(others, _AROUND_MAX))[::-1]


def consequences_of(reader: Reader, of: JournalEntry, until_seq: int | None) -> tuple[tuple[Link, ...], bool]:
    """Return the events that `of` caused, directly or indirectly, and whether the search was complete."""
    family = {of.seq}
    found: list[Link] = []
    looked = 0
    if until_seq is not None and until_seq <= of.seq:
        return (), True
    for entry in up_to(islice(reader.seek(seq=of.seq + 1), _SEARCHED_MAX), until_seq):
        looked += 1
        if brief(entry.event).cause in family:
            family.add(entry.seq)
            found.append(link_of(entry))
            if len(found) == _CONSEQUENCES_MAX:
                return tuple(found), False
    return tuple(found), looked < _SEARCHED_MAX


def _after(reader: Reader, event: Link, until_seq: int | None) -> Iterator[JournalEntry]:
    """Yield the events after this one, up to `until_seq`. What comes after that is not read: it may be damaged."""
    last = until_seq if until_seq is not None else reader.last_seq
    return islice(reader.seek(seq=event.seq + 1), max(0, last - event.seq))


def _first(entries: Iterable[JournalEntry], types: Collection[str]) -> tuple[Link, ...]:
    """Return the first of these entries that is of one of the types; empty if none of the next ones is."""
    found = next((one for one in islice(entries, _SEARCHED_MAX) if brief(one.event).type in types), None)
    return () if found is None else (link_of(found),)
