"""What stood around an event: the level of loss and norm, the checkpoints, the end of the trainer before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from journal import JournalEntry
from journal.reader import Reader
from tolariad.core.calc.steps.table import step_row
from tolariad.forensics.level import STEPS_AFTER, STEPS_BEFORE, Level, Step, level_around
from tolariad.forensics.links import Link, link_of
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.timeline import UNREADABLE, Query, backwards, brief
from tolariad.forensics.topics import STARTS, UNUSUAL, WAYS_TO_END

SEARCHED_MAX: Final = 20_000
AROUND_EVENTS: Final = 2000


def until(seq: int) -> Query:
    """Return the query for all events up to this one."""
    return Query(until=JournalPosition(PositionKind.SEQ, seq))


def level_of(reader: Reader, event: Link, until_seq: int | None) -> Level | None:
    """Return loss and norm around an unusual step; None for any other event."""
    if event.fields.get("type") not in UNUSUAL:
        return None
    earlier = islice(backwards(reader, until(event.seq - 1)), AROUND_EVENTS)
    before = list(islice(_steps(earlier), STEPS_BEFORE))[::-1]
    last = until_seq if until_seq is not None else reader.last_seq
    after = islice(_steps(islice(reader.seek(seq=event.seq + 1), max(0, last - event.seq))), STEPS_AFTER)
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
    last = until_seq if until_seq is not None else reader.last_seq

    def committed(entries: Iterable[JournalEntry]) -> tuple[Link, ...]:
        of_one = (one for one in entries if brief(one.event).type == "CheckpointCommitted")
        return tuple(link_of(one) for one in islice(of_one, 1))

    # One after the other: both move the same reader.
    before = committed(islice(backwards(reader, until(event.seq - 1)), SEARCHED_MAX))
    after = committed(islice(reader.seek(seq=event.seq + 1), max(0, min(SEARCHED_MAX, last - event.seq))))
    return before + after


def ended_before(reader: Reader, event: Link) -> tuple[Link, ...]:
    """Return how the process before a start ended; empty for any other event, and for a first start."""
    if event.fields.get("type") not in STARTS:
        return ()
    for entry in islice(backwards(reader, until(event.seq - 1)), SEARCHED_MAX):
        if brief(entry.event).type in WAYS_TO_END:
            return (link_of(entry),)
    return ()
