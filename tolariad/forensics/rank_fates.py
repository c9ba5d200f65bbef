"""What became of each rank of a run of several: which died, hung, raised an exception or differed, and when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from journal import JournalEntry
from journal.reader import Reader
from tolariad.core.calc.steps.table import is_step
from tolariad.forensics.timeline import brief, decode_fields, number_in, up_to

_MEASURED: Final = "BudgetsMeasured"
_TROUBLES: Final = {
    "TrainerDied": "died",
    "TrainerHung": "hung",
    "ExceptionRaised": "raised an exception",
}
_DIFFERED: Final = "differed from rank 0"
# How a program's rank 0 begins the text of another rank's error, and how it says that one was lost.
_RANK: Final = re.compile(r"\brank (\d{1,6})\b", re.IGNORECASE)
# The names of exceptions end a recorded kind, after their module.
_DIFFER: Final = ".RanksDiffer"
_LOST: Final = ".RankLost"


class Fate(msgspec.Struct, frozen=True):
    """One trouble of one rank: what it did, after which step if that is told, and the event that tells it."""

    rank: int
    did: str
    step: int | None
    seq: int


class Fates(msgspec.Struct, frozen=True):
    """The troubles of all ranks, oldest first. `timed`: the newest event with the times of the ranks, 0 without."""

    troubles: tuple[Fate, ...]
    timed: int

    @property
    def told(self) -> int:
        """Return the number of the event to explain: the newest trouble, else the newest times; 0 without any."""
        return self.troubles[-1].seq if self.troubles else self.timed


def fates_of(reader: Reader, until_seq: int | None) -> Fates:
    """Return what became of each rank. A run of one process has neither troubles of ranks nor times."""
    found: list[Fate] = []
    timed, is_several = 0, False
    told: set[int | None] = set()
    for entry in _events(reader, until_seq):
        fields = decode_fields(entry.event)
        if fields.get("type") == _MEASURED:
            timed = entry.seq if fields.get("ranks") else timed
            continue
        incarnation = number_in(fields, "incarnation")
        # The end of a trainer that raised, or hung, is told by the event before.
        if fields.get("type") == "TrainerDied" and incarnation in told:
            continue
        told.add(incarnation)
        rank, is_named = _rank_of(fields)
        is_several = is_several or is_named
        found.append(Fate(rank, _did(fields), number_in(fields, "step"), entry.seq))
    return Fates(tuple(found) if is_several or timed else (), timed)


def _events(reader: Reader, until_seq: int | None) -> Iterator[JournalEntry]:
    for entry in up_to(reader.seek(seq=1), until_seq):
        if is_step(bytes(entry.event)):
            continue
        told = brief(entry.event)
        # An order ended the trainer, or its daemon did: that is the trouble of no rank.
        if told.type == _MEASURED or (told.type in _TROUBLES and told.reason not in ("killed", "with_daemon")):
            yield entry


def _rank_of(fields: dict[str, Any]) -> tuple[int, bool]:
    """Return the rank that an event tells of, and whether it can only be one of several."""
    if fields.get("type") != "ExceptionRaised":
        rank = number_in(fields, "rank") or 0
        return rank, rank > 0
    text, kind = str(fields.get("traceback", "")), str(fields.get("kind", ""))
    named = _RANK.findall(str(fields.get("text") or text))
    if kind.endswith(_DIFFER):
        # Rank 0 is what the others are compared with, and the sentence names it first.
        return next((int(one) for one in named if int(one)), 0), True
    if kind.endswith(_LOST) and named:
        return int(named[0]), True
    begins = _RANK.match(text)
    return (int(begins[1]), True) if begins else (0, False)


def _did(fields: dict[str, Any]) -> str:
    kind = str(fields.get("kind", ""))
    if kind.endswith(_LOST):
        return _TROUBLES["TrainerDied"]
    return _DIFFERED if kind.endswith(_DIFFER) else _TROUBLES[str(fields.get("type"))]
