"""The records of a training as values that two runs can have in common: no sequence number, no time, no host.

Promises: the records of a run are exactly the events that its running digest covers, so equal digests mean equal
records. Values are compared by their bits, and every NaN is equal to every other.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Any, Final, NamedTuple

from journal.errors import JournalError
from journal.reader import Reader
from journal.records import JournalEntry
from tolariad.core import messages as m
from tolariad.core.calc.steps.many import PACKED_BYTES, ManySteps, many_of, one_nan
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.core.state.replay import unfoldable
from tolariad.core.state.run_state import RunState, apply, apply_steps

# The place of a record, and its values in the order in which a step makes them: the data, then what they lead to.
_PLACE_OF: Final[dict[type[m.Event], tuple[str, ...]]] = {
    m.StepCompleted: ("branch", "step"),
    m.StepSkipped: ("branch", "step", "epoch", "batch"),
    m.EpochFinished: ("epoch", "step"),
    m.ValidationFinished: ("epoch", "step", "batch"),
    m.RolledBack: ("branch", "step", "epoch", "batch"),
    m.ArchitectureChanged: ("number",),
}
_VALUES_OF: Final[dict[type[m.Event], tuple[str, ...]]] = {
    m.StepCompleted: ("epoch", "batch", "data", "loss", "grad_norm", "lr", "rates"),
    m.StepSkipped: ("reason", "loss", "grad_norm"),
    m.EpochFinished: (),
    m.ValidationFinished: (),
    m.RolledBack: (),
    m.ArchitectureChanged: ("name", "arguments", "applied_before_step", "epoch_ended"),
}
METRIC: Final = "metric "


class Record(NamedTuple):
    """One record. `place`: its type and its place in the training, which no other record of the run has."""

    seq: int
    place: tuple[str | int, ...]
    values: dict[str, Any]


class Acted(NamedTuple):
    """A boundary order that acted from update `before_step` on, and what it does."""

    seq: int
    number: int
    before_step: int
    kind: str
    does: dict[str, Any]

    def is_same(self, other: Acted) -> bool:
        """Return whether the other order does the same at the same place."""
        mine, others = (self.number, self.before_step, self.kind), (other.number, other.before_step, other.kind)
        return mine == others and self.does == other.does


class Moment(NamedTuple):
    """A record, and the state after it."""

    record: Record
    state: RunState


class Walk:
    """The records of one run after a state, each of which can be looked at before it is taken.

    `orders`: those that acted up to the last record that was looked at. `incomparable`: what of the journal nobody can
    compare.
    """

    def __init__(self, reader: Reader, state: RunState) -> None:
        self.state = state
        self.orders: list[Acted] = []
        self.incomparable: list[str] = []
        self._waiting: list[Moment] = []
        self._reached = state  # after the last event that was folded, which may be none of the records
        self._entries = iter(reader.seek(seq=state.seq + 1))
        # What was read ahead of the fold, each with its decoded event if it is a step; and why no more could be read.
        self._read: deque[tuple[JournalEntry, m.StepCompleted | None]] = deque()
        self._failure: JournalError | None = None
        self._moments = self._folded()

    def steps_ahead(self, count: int) -> list[m.StepCompleted]:
        """Return the steps that come next without any other event before or between them, at most `count`."""
        if self._waiting:
            return []
        while len(self._read) < count and (not self._read or self._read[-1][1] is not None) and self._read_one():
            pass
        steps = takewhile(lambda event: event is not None, (event for _, event in self._read))
        return [event for event in islice(steps, count) if event is not None]

    def pass_over(self, steps: Sequence[m.StepCompleted]) -> None:
        """Take these steps, which come next, without looking at each."""
        self._reached = self.state = apply_steps(self._reached, many_of(steps))
        for _ in steps:
            self._read.popleft()

    def ahead(self, count: int) -> Sequence[Moment]:
        """Return the next records, at most `count`, without taking them."""
        while len(self._waiting) < count and (one := next(self._moments, None)) is not None:
            self._waiting.append(one)
        return self._waiting[:count]

    def take(self) -> Moment | None:
        """Return the next record, or None at the end of the journal."""
        taken = self._waiting.pop(0) if self._waiting else next(self._moments, None)
        if taken is not None:
            self.state = taken.state
        return taken

    @property
    def taken(self) -> int:
        """Return how many records the run had up to the last one that was taken."""
        return self.state.progress.digest.records

    @property
    def last_state(self) -> RunState:
        """Return the state after the next record, which may be the first that differs; at the end, the last one."""
        following = self.ahead(1)
        return following[0].state if following else self.state

    def _read_one(self) -> bool:
        """Read one more event; False if there is none. A failure is raised when the fold gets there."""
        try:
            entry = next(self._entries, None)
        except JournalError as error:
            self._failure, entry = error, None
        if entry is None:
            return False
        try:
            event = decode_event(entry.event)
        except (ValueError, RecursionError):
            event = None  # the fold says what is wrong with it
        self._read.append((entry, event if type(event) is m.StepCompleted else None))
        return True

    def _events(self) -> Iterator[tuple[int, m.Event | Unknown]]:
        while self._read or self._read_one():
            entry, step = self._read.popleft()
            yield entry.seq, _decoded(entry) if step is None else step
        if self._failure is not None:
            raise self._failure

    def _folded(self) -> Iterator[Moment]:
        for seq, event in self._events():
            state = self._reached
            try:
                after = self._reached = apply(state, event)
            except Exception as error:
                raise unfoldable(f"event {seq}", error) from error
            if isinstance(event, Unknown):
                if not event.skippable:
                    self.incomparable.append(f"event {seq} is of type {event.type}, which this version cannot read")
            elif isinstance(event, m.GapRecorded):
                self.incomparable.append(f"events from {event.first_seq} on were lost in a repair")
            elif isinstance(event, m.OrderActed):
                self.orders.append(_acted(seq, event))
            elif after.progress.digest.records != state.progress.digest.records:
                yield Moment(_record(seq, event, after), after)


def _decoded(entry: JournalEntry) -> m.Event | Unknown:
    try:
        return decode_event(entry.event)
    except Exception as error:
        raise unfoldable(f"event {entry.seq}", error) from error


def equal_steps(one: Sequence[m.StepCompleted], other: Sequence[m.StepCompleted]) -> int:
    """Return how many steps at the beginning are the same in everything that is compared, the metrics by their places.

    Fewer if a value differs that may be left out of the comparison.
    """
    count = min(len(one), len(other))
    mine, others = (many_of(each[:count]) for each in (one, other))
    if mine.packed() == others.packed() and _metrics(mine) == _metrics(others):
        return count
    both = zip(_rows(mine), _rows(others), strict=True)
    return next((at for at, (a, b) in enumerate(both) if a != b), count)


def _rows(made: ManySteps) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
    packed, size = made.packed(), PACKED_BYTES
    for at, values in enumerate(made.metrics):
        yield packed[at * size : (at + 1) * size], tuple(struct.pack("<d", one_nan(value)) for value in values)


def _metrics(made: ManySteps) -> tuple[list[int], bytes]:
    """Return how many metrics each step has, and the bits of all, the same for every NaN."""
    return [*map(len, made.metrics)], array("d", map(one_nan, chain.from_iterable(made.metrics))).tobytes()


def _acted(seq: int, event: m.OrderActed) -> Acted:
    order = event.order
    does = {name: getattr(order, name) for name in order.__struct_fields__ if name not in order.RECORD}
    return Acted(seq, event.number, event.applied_before_step, type(order).__name__, does)


def _record(seq: int, event: m.Event, after: RunState) -> Record:
    kind = type(event)
    place = (kind.__name__, *(getattr(event, name) for name in _PLACE_OF.get(kind, ())))
    values = {name: getattr(event, name) for name in _VALUES_OF.get(kind, ())}
    if isinstance(event, m.StepCompleted):
        named = zip(after.progress.metric_names, event.metrics, strict=False)
        values |= {f"{METRIC}{name}": value for name, value in named}
    elif isinstance(event, m.ValidationFinished):
        values |= {f"{METRIC}{name}": event.metrics[name] for name in sorted(event.metrics)}
    return Record(seq, place, values)


def bits_of(value: float) -> str:
    """Return the bits of a number as hexadecimal digits."""
    return struct.pack(">d", value).hex()


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are the same: numbers by their bits, and one NaN as good as another."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other) or (one != one and other != other)  # noqa: PLR0124
    return bool(one == other)
