"""Events of an answer, and the chain of their causes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from journal import JournalEntry
from journal.reader import Reader
from tolariad.forensics.timeline import decode_fields, number_in

DEPTH_MAX: Final = 64


class Link(msgspec.Struct, frozen=True):
    """One event of an answer."""

    seq: int
    fields: dict[str, Any]


def link_of(entry: JournalEntry) -> Link:
    """Return an entry with its fields."""
    return Link(entry.seq, decode_fields(entry.event))


def entry_at(reader: Reader, seq: int) -> JournalEntry | None:
    """Return the entry with this number, or None."""
    found = next(iter(reader.seek(seq=seq)), None) if seq > 0 else None
    return found if found is not None and found.seq == seq else None


def causes_of(reader: Reader, event: Link) -> tuple[Link, ...]:
    """Follow `cause` upwards. A cause must be an earlier event, so the loop ends even in a forged journal."""
    chain: list[Link] = []
    at = event
    while len(chain) < DEPTH_MAX:
        cause = number_in(at.fields, "cause") or 0
        entry = entry_at(reader, cause) if 0 < cause < at.seq else None
        if entry is None:
            break
        at = link_of(entry)
        chain.append(at)
    return tuple(reversed(chain))
