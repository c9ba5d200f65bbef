"""The first step after which two runs held other tensors, although every record up to there is the same.

A bit that flips in memory may stay without a trace in the losses for a long time. The digests of the state name step
and tensor.

Promises: only digests of the same step, branch and method are compared, and of as many tensors. The search reads some
thousand events before the first record that differs, and as many for each halving of the way to the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.reader import Reader
from tolariad.core import messages as m
from tolariad.core.calc.steps.table import is_step
from tolariad.core.messages.vocabulary import decode_event
from tolariad.forensics.timeline import brief

# So many events of one run are searched for digests at one place; in the other run some more on both sides.
_WINDOW: Final = 2048
_BESIDE: Final = 512
# The names of the tensors are in some of the events only: every checkpoint has them.
_NAMES_WITHIN: Final = 20_000
_KIND: Final = "ParametersDigested"


class Place(NamedTuple):
    """An event in each run."""

    a: int
    b: int


class Differing(NamedTuple):
    """The first step after which a tensor is not the same. `seqs`: the events. `a`, `b`: its digests."""

    branch: int
    step: int
    tensor: str
    seqs: Place
    a: int
    b: int


class _Pair(NamedTuple):
    seqs: Place
    a: m.ParametersDigested
    b: m.ParametersDigested

    @property
    def is_same(self) -> bool:
        return self.a.tensors == self.b.tensors


def first_differing(a: Reader, b: Reader, ends: Place) -> Differing | None:
    """Return the first difference before the events `ends`; None if no digest there differs. Raises JournalError."""
    # Of run A, in windows: all in the last one differ or not; the first window in which one differs is looked for.
    low, high = 0, max(0, ends.a - 1) // _WINDOW
    found = {high: _pairs(a, b, ends, high)}
    if not found[high] or found[high][-1].is_same:
        return None
    while low < high:
        middle = (low + high) // 2
        found[middle] = _pairs(a, b, ends, middle)
        # Once tensors differ they do so for good, unless the difference heals. A window without digests tells nothing.
        if found[middle] and not found[middle][-1].is_same:
            high = middle
        else:
            low = middle + 1
    return _named(a, b, next(one for one in found[high] if not one.is_same))


def _pairs(a: Reader, b: Reader, ends: Place, window: int) -> list[_Pair]:
    """Return what both runs have digests of, in one window of run A."""
    first, last = window * _WINDOW + 1, min(ends.a, (window + 1) * _WINDOW)
    mine = _digests(a, first, last)
    if not mine:
        return []
    # As if the other run had as many events to a step.
    at = ends.b - (ends.a - first) * ends.b // max(1, ends.a)
    others = _digests(b, max(1, at - _BESIDE), min(ends.b, at + _WINDOW + _BESIDE))
    both = ((mine[place], others[place]) for place in mine if place in others)
    return [
        _Pair(Place(seq_a, seq_b), one, other)
        for (seq_a, one), (seq_b, other) in both
        if one.method is other.method and len(one.tensors) == len(other.tensors)
    ]


def _digests(reader: Reader, first: int, last: int) -> dict[tuple[int, int], tuple[int, m.ParametersDigested]]:
    """Return the digests of the states after updates, by branch and step."""
    found = {}
    for seq, event in _events(reader, first, last):
        if not event.checkpoint:
            found[event.branch, event.step] = seq, event
    return found


def _events(reader: Reader, first: int, last: int) -> Iterator[tuple[int, m.ParametersDigested]]:
    for entry in reader.seek(seq=first):
        if entry.seq > last:
            return
        # Nearly every event is a step.
        if is_step(bytes(entry.event)) or brief(entry.event).type != _KIND:
            continue
        event = decode_event(entry.event)
        if isinstance(event, m.ParametersDigested):
            yield entry.seq, event


def _named(a: Reader, b: Reader, pair: _Pair) -> Differing:
    number = next(n for n, (one, other) in enumerate(zip(pair.a.tensors, pair.b.tensors, strict=True)) if one != other)
    return Differing(
        pair.a.branch,
        pair.a.step,
        _name(a, pair.seqs.a, pair.a, number) or _name(b, pair.seqs.b, pair.b, number) or f"tensor {number + 1}",
        pair.seqs,
        pair.a.tensors[number],
        pair.b.tensors[number],
    )


def _name(reader: Reader, seq: int, event: m.ParametersDigested, number: int) -> str:
    """Return the name of a tensor from this event or a later one; "" if none near it has names."""
    if event.names:
        return event.names[number]
    for _, one in _events(reader, seq, seq + _NAMES_WITHIN):
        if len(one.names) == len(event.tensors):
            return one.names[number]
    return ""
