"""Sentences of one kind that come again and again: the first is said, the others are counted.

A run that explodes may skip hundreds of batches in a row. A line for each would hide every other one. The journal has
all of them.

Promises: pure. No event is left out of the counts: `heard`, `calm` and `rest` say what is pending.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

# How many steps may lie between two of a kind, if the second is only counted. A hook that sets a rate does it for good.
_NEAR: Final = {"StepSkipped": 4, "LrViolationDetected": 1 << 62}
_CALLED: Final = {"StepSkipped": "skipped batches", "LrViolationDetected": "corrections of rates"}


class Series(Struct, frozen=True):
    """Events of one kind in a row. `step`, `last`: the step and the sentence of the newest one.

    `unsaid`: how many were neither said nor counted in a line yet.
    """

    step: int
    count: int = 1
    unsaid: int = 0
    last: str = ""


class Repeats(Struct, frozen=True):
    """The newest series of each kind that is counted."""

    series: dict[str, Series] = {}


Told: TypeAlias = tuple[Repeats, tuple[str, ...]]


def is_counted(kind: str) -> bool:
    """Return whether events of this kind are counted if they come again."""
    return kind in _NEAR


def heard(was: Repeats, kind: str, step: int | None, text: str, many: int = 1) -> Told:
    """Return what is to be said of an event with this sentence. `many`: how many events of the kind it stands for.

    The count is said after 10, 100, 1000 and so on. An event of another kind says it too, unless that is counted
    itself.
    """
    if not is_counted(kind) or step is None:
        now, lines = rest(was)
        return now, (*lines, text)
    known = was.series.get(kind)
    if known is None or step - known.step > _NEAR[kind]:
        series, lines = Series(step, many, many - 1, text), (*_lines(kind, known), text)
    else:
        series, lines = Series(step, known.count + many, known.unsaid + many, text), ()
        if len(str(series.count)) > len(str(known.count)):
            series, lines = replace(series, unsaid=0), _lines(kind, series)
    return Repeats({**was.series, kind: series}), lines


def calm(was: Repeats, step: int) -> Told:
    """Return the counts of the series that have ended, if the run is at this step."""
    return _counted(was, (kind for kind, one in was.series.items() if step - one.step > _NEAR[kind]))


def rest(was: Repeats) -> Told:
    """Return the counts that are pending."""
    return _counted(was, was.series)


def _counted(was: Repeats, kinds: Iterable[str]) -> Told:
    pending = [kind for kind in kinds if was.series[kind].unsaid]
    if not pending:
        return was, ()
    lines = [line for kind in pending for line in _lines(kind, was.series[kind])]
    said = {kind: replace(was.series[kind], unsaid=0) for kind in pending}
    return Repeats({**was.series, **said}), tuple(lines)


def _lines(kind: str, series: Series | None) -> tuple[str, ...]:
    """Return the count in words. A single event is said itself: that is no longer."""
    if series is None or not series.unsaid:
        return ()
    if series.unsaid == 1:
        return (series.last,)
    counted = f"{series.unsaid} more {_CALLED[kind]}, the newest at step {series.step}"
    return (f"{counted}. `tolaria events RUN -t {kind}` lists them.",)
