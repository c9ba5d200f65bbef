"""What happened in a run besides its steps: marks and spans on the charts, tables, and what the time was spent on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from journal.reader import Reader
from journal.records import JournalEntry
from journal.rows import others
from tolariad.core.calc.health.spending import SPENT, STOPPED
from tolariad.core.calc.steps.table import STEP_NAMES, is_step
from tolariad.core.calc.text.plain import rfc3339
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.forensics.numbers import Steps
from tolariad.forensics.timeline import decode_fields, number_in
from tolariad.forensics.words import by_whom, in_words, named

# The kind of a mark, by the event's name; its beginning is enough.
_MARKS: Final = {
    "RolledBack": "rollback",
    "TrainerDied": "death",
    "TrainerHung": "death",
    "RunFailed": "death",
    "InstabilityDetected": "finding",
    "StepSkipped": "skip",
    "OrderActed:SetRate": "rate",
    "PlateauReached": "rate",
    "OrderActed:BeginStage": "stage",
    "OrderActed:MaskUnits": "prune",
    "OrderActed:CompactModel": "prune",
    "MaskSetRejected": "prune",
    "OrderActed:MoveSeed": "seed",
    "ArchitectureChanged": "growth",
    "ConfigChanged": "config",
    "RunPaused": "pause",
    "NoteAdded": "note",
}
# The events that begin and end what a span shows; a span lasts over steps.
_SPANS: Final = {
    "seed": ("OrderActed:MoveSeed",),
    "masks in their safety window": ("OrderActed:MaskUnits",),
    "conservative mode": ("ConservativeModeEntered",),
}
_SPAN_ENDS: Final = {
    "masks in their safety window": ("MaskSetPassed", "MaskSetRejected"),
    "conservative mode": ("ConservativeModeLeft",),
}
# Stages in which a seed's life is over, or in which it is a part of the model for good.
_SEED_ENDS: Final = ("CULLED", "FOSSILIZED", "RESETTING", "EMBARGOED")
_ROWS_MAX: Final = 500


class Mark(msgspec.Struct, frozen=True):
    """An event at a step. `row`: how many steps had been made by then, given-up ones included."""

    kind: str
    step: int
    row: int
    seq: int
    text: str


class Span(msgspec.Struct, frozen=True):
    """Something that lasted over steps. `last` None: to the end."""

    kind: str
    name: str
    first: int
    last: int | None
    first_row: int
    last_row: int | None


class Table(msgspec.Struct, frozen=True):
    """A table of the page. `left_out`: rows that are in the journal and not here."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left_out: int = 0


class Happenings(msgspec.Struct, frozen=True):
    """Everything of a run that is not a number of a step."""

    marks: list[Mark]
    spans: list[Span]
    tables: list[Table]
    spent: dict[str, float]


class _Gathering:
    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.spans: list[Span] = []
        self.spent: dict[str, float] = {}
        self.rows: dict[str, list[tuple[str, ...]]] = {}
        self.left_out: dict[str, int] = {}
        self._open: dict[tuple[str, str], tuple[int, int]] = {}
        self._doing = ""
        self._since = self._last = 0

    def add(self, seq: int, fields: dict[str, Any], step: int, row: int) -> None:
        """Add one event, after `row` steps of which the last one was `step`."""
        name, wall = named(fields), number_in(fields, "wall") or 0
        kind = next((kind for begin, kind in _MARKS.items() if name == begin), None)
        if kind is not None:
            self.marks.append(Mark(kind, step, row, seq, in_words(fields)))
        self._span(name, fields, step, row)
        self._table(name, seq, fields, step, wall)
        self._time(name, wall)

    def at(self, wall: int) -> None:
        """Remember that something was recorded at this time."""
        self._last = max(self._last, wall)

    def finish(self) -> None:
        """End what goes on."""
        self._time("", self._last)
        for (kind, name), (step, row) in self._open.items():
            self.spans.append(Span(kind, name, step, None, row, None))

    def _time(self, name: str, wall: int) -> None:
        # Between the last event of one daemon and the first of the next, no recorder ran.
        if name == "DaemonStarted" and self._doing and self._doing != STOPPED:
            self._spend(self._last)
            self._doing = "without a recorder"
        doing = SPENT.get(name)
        if doing is None and name:
            self.at(wall)
            return
        self._spend(wall)
        self._doing = doing or ""

    def _spend(self, wall: int) -> None:
        if self._doing:
            self.spent[self._doing] = self.spent.get(self._doing, 0.0) + max(0, wall - self._since) / 1e9
        self._since = max(self._since, wall)
        self.at(wall)

    def _span(self, name: str, fields: dict[str, Any], step: int, row: int) -> None:
        order = fields.get("order")
        slot = str(order.get("slot", "")) if isinstance(order, dict) else ""
        for kind, begins in _SPANS.items():
            if name in begins:
                ends = kind == "seed" and isinstance(order, dict) and str(order.get("stage", "")) in _SEED_ENDS
                if ends:
                    self._end((kind, slot), step, row)
                else:
                    self._open.setdefault((kind, slot), (step, row))
        for kind, ends_by in _SPAN_ENDS.items():
            if name in ends_by:
                self._end((kind, ""), step, row)

    def _end(self, key: tuple[str, str], step: int, row: int) -> None:
        if (begun := self._open.pop(key, None)) is not None:
            self.spans.append(Span(key[0], key[1], begun[0], step, begun[1], row))

    def _table(self, name: str, seq: int, fields: dict[str, Any], step: int, wall: int) -> None:
        when = rfc3339(wall)[:19].replace("T", " ")
        said = in_words(fields)
        match name:
            case "CheckpointCommitted":
                size = f"{(number_in(fields, 'size') or 0) / 1e6:.1f} MB"
                at = str(number_in(fields, "step"))
                self._row("Checkpoints", (when, str(fields.get("id", "")), at, str(fields.get("epoch", "")), size))
            case "RolledBack" | "RerunBegun" | "TrainerDied":
                self._row("Lost work", (when, str(seq), str(step), said))
            case _ if self._is_order(name, fields):
                actor = fields.get("actor")
                by = by_whom(actor) if isinstance(actor, dict) else ""
                self._row("Orders and notes", (when, str(seq), str(step), said, by))

    @staticmethod
    def _is_order(name: str, fields: dict[str, Any]) -> bool:
        kind = EVENT_TYPES.get(str(fields.get("type", "")))
        by_order = kind is not None and bool(kind.accepts()) and isinstance(fields.get("actor"), dict)
        return name == "NoteAdded" or by_order or (name.startswith("OrderGiven") and bool(fields.get("actor")))

    def _row(self, table: str, row: tuple[str, ...]) -> None:
        rows = self.rows.setdefault(table, [])
        if len(rows) < _ROWS_MAX:
            rows.append(row)
        else:
            self.left_out[table] = self.left_out.get(table, 0) + 1


_HEADS: Final = {
    "Checkpoints": ("time (UTC)", "id", "step", "epoch", "size"),
    "Lost work": ("time (UTC)", "event", "step", "what happened"),
    "Orders and notes": ("time (UTC)", "event", "step", "what was ordered", "by"),
}


def happenings(journal: Path, steps: Steps, hear: Callable[[JournalEntry], None] = lambda _: None) -> Happenings:
    """Read the events that are no steps. `steps`: all that were made, in this order. Raises JournalError, OSError.

    `hear` is called with each of these events, so that nobody has to read the journal a second time.
    """
    found = _Gathering()
    with Reader(journal) as reader:
        for rows, entry in others(reader, STEP_NAMES, is_step):
            hear(entry)
            made = min(rows, len(steps))
            if made:
                found.at(int(steps.wall[made - 1]))
            found.add(entry.seq, decode_fields(entry.event), int(steps.step[made - 1]) if made else 0, rows)
    if len(steps):
        found.at(int(steps.wall[-1]))
    found.finish()
    tables = [
        Table(title, head, found.rows.get(title, []), found.left_out.get(title, 0)) for title, head in _HEADS.items()
    ]
    return Happenings(found.marks, found.spans, tables, found.spent)
