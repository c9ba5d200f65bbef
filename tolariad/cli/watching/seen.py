"""What the screen of `tolaria watch` knows from the journal: curves, and the newest checkpoints.

Promises: a function of the events, in bounded memory. Of the steps that share a bucket the least and the greatest
value are kept, so a spike stays visible. A step that comes again replaces all that came after it: a rollback, and a
start from an older checkpoint, need no special case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from journal import JournalEntry
from tolariad.core.calc.steps.table import is_step, step_row
from tolariad.forensics.timeline import UNREADABLE

_BUCKETS_MAX: Final = 512
_CHECKPOINTS_MAX: Final = 3
_VALIDATION_NAMES_MAX: Final = 32
# An axis is computed from differences of values, which must be finite.
_GREATEST: Final = 1e300


class Series:
    """One number over the steps, as least and greatest value of each bucket."""

    def __init__(self) -> None:
        self.width = 1  # steps of a bucket
        self.left_out = 0  # values that are not finite
        self._keys: list[int] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._last_step = -1

    def add(self, step: int, value: float) -> None:
        """Add the value of a step."""
        if step <= self._last_step:
            self.forget(step)
        self._last_step = step
        if not abs(value) < _GREATEST:
            self.left_out += 1
            return
        key = step // self.width
        if self._keys and self._keys[-1] == key:
            self._low[-1] = min(self._low[-1], value)
            self._high[-1] = max(self._high[-1], value)
            return
        self._put(key, value, value)
        if len(self._keys) > _BUCKETS_MAX:
            self._halve()

    def forget(self, step: int) -> None:
        """Forget the values from this step on. Those of a few steps before it may go too: the rest of its bucket."""
        self._last_step = min(self._last_step, step - 1)
        while self._keys and self._keys[-1] >= step // self.width:
            for column in (self._keys, self._low, self._high):
                column.pop()

    def points(self) -> list[tuple[float, float]]:
        """Return the curve as (step, value); two points for a bucket whose values differ."""
        found: list[tuple[float, float]] = []
        for key, low, high in zip(self._keys, self._low, self._high, strict=True):
            found.append((key * self.width, low))
            if high > low:
                found.append((key * self.width, high))
        return found

    def _put(self, key: int, low: float, high: float) -> None:
        self._keys.append(key)
        self._low.append(low)
        self._high.append(high)

    def _halve(self) -> None:
        former = list(zip(self._keys, self._low, self._high, strict=True))
        self.width *= 2
        self._keys, self._low, self._high = [], [], []
        for key, low, high in former:
            if self._keys and self._keys[-1] == key // 2:
                self._low[-1] = min(self._low[-1], low)
                self._high[-1] = max(self._high[-1], high)
            else:
                self._put(key // 2, low, high)


class SeenCheckpoint(NamedTuple):
    """A committed checkpoint. `note`: what became of it; empty if nothing did."""

    id: str
    step: int
    size: int
    note: str = ""


class _Told(msgspec.Struct, frozen=True, gc=False):
    """The fields of the events that count here; absent ones have values that change nothing."""

    type: str
    step: int = 0
    id: str = ""
    size: int = 0
    metrics: dict[str, float] = {}


_decode: Final = msgspec.msgpack.Decoder(_Told).decode
_NOTES: Final = {
    "CheckpointPromoted": "promoted",
    "CheckpointRejected": "rejected",
    "CheckpointUnfit": "does not fit",
    "CheckpointDeletionBegun": "removed",
}


class Seen:
    """The events so far: loss and rate of the steps, results of the validations by name, the newest checkpoints."""

    def __init__(self) -> None:
        self.loss, self.lr = Series(), Series()
        self.validations: dict[str, Series] = {}
        self.checkpoints: list[SeenCheckpoint] = []

    def add(self, entries: Iterable[JournalEntry]) -> None:
        """Add the next events. Those that cannot be read, or are of other types, change nothing."""
        for entry in entries:
            event = bytes(entry.event)
            try:
                if is_step(event):
                    self._step(step_row(event) or ())
                else:
                    self._other(_decode(event))
            except UNREADABLE:
                continue

    def _step(self, row: Sequence[float]) -> None:
        step, loss, lr = int(row[0]), row[3], row[5]
        self.loss.add(step, loss)
        self.lr.add(step, lr)

    def _other(self, told: _Told) -> None:
        match told.type:
            case "ValidationFinished":
                for name, value in told.metrics.items():
                    if name in self.validations or len(self.validations) < _VALIDATION_NAMES_MAX:
                        self.validations.setdefault(name, Series()).add(told.step, value)
            case "RolledBack":
                for series in (self.loss, self.lr, *self.validations.values()):
                    series.forget(told.step + 1)
            case "CheckpointCommitted":
                self.checkpoints.append(SeenCheckpoint(told.id, told.step, told.size))
                del self.checkpoints[:-_CHECKPOINTS_MAX]
            case kind if kind in _NOTES:
                note = _NOTES[kind]
                self.checkpoints = [one._replace(note=note) if one.id == told.id else one for one in self.checkpoints]
            case _:
                return
