"""Find, in two journals, a moment up to which both runs are the same, close before the first difference.

Promises: the search reads captures only, a few for each halving of the way. Nothing is concluded from captures of
another FOLD_VERSION: without usable ones the moment is the beginning of the runs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from journal.reader import Reader
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.steps.many import many_of
from tolariad.core.messages.vocabulary import decode_event
from tolariad.core.state.replay import newest_usable
from tolariad.core.state.run_state import RunState, apply, apply_steps

# So few records are folded faster than a further capture is found.
_NEAR_ENOUGH: Final = 2 * st.MARK_RECORDS
# Where to look between the bounds: at the middle or, if the captures there have no mark in common, beside it.
_SHARES: Final = (0.5, 0.375, 0.625, 0.25, 0.75)


class _Bounds(NamedTuple):
    """The digests agree after `same` records. After `end` they differ, or one of the runs has no more records."""

    same: int
    end: int

    def with_marks(self, one: RunState, other: RunState) -> _Bounds:
        """Return the bounds with what the marks of a capture of each run tell."""
        mine, others = _marks_of(one), _marks_of(other)
        same, end = self
        for records in sorted(mine.keys() & others.keys()):
            if mine[records] != others[records]:
                end = min(end, records)
                break
            same = max(same, records)
        return _Bounds(same, end)


class _Captures:
    """The captures of one run, found by the number of records. It narrows the place as it learns."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.newest = newest_usable(reader.captures())
        self._known = {0: RunState(), self.newest.progress.digest.records: self.newest}

    def near(self, records: int) -> RunState:
        """Return a capture close to so many records. Events per record are taken as constant between known ones."""
        counts = sorted(self._known)
        before = max(count for count in counts if count <= records)
        after = next((count for count in counts if count > records), None)
        if after is None:
            return self._known[before]
        first, last = self._known[before].seq, self._known[after].seq
        seq = first + (last - first) * (records - before) // (after - before)
        found = newest_usable(self.reader.captures(max(1, seq)))
        self._known[found.progress.digest.records] = found
        return found

    def at(self, records: int) -> RunState:
        """Return the first state after exactly so many records."""
        self.near(records)
        state = self._known[max(count for count in self._known if count <= records)]
        # Each step is one record; what other events add is known when they are folded.
        steps: list[m.StepCompleted] = []
        entries = iter(self.reader.seek(seq=state.seq + 1))
        while state.progress.digest.records + len(steps) < records and (entry := next(entries, None)) is not None:
            event = decode_event(entry.event)
            if type(event) is m.StepCompleted:
                steps.append(event)
            else:
                state, steps = apply(apply_steps(state, many_of(steps)), event), []
        return apply_steps(state, many_of(steps))


def common_start(a: Reader, b: Reader) -> tuple[RunState, RunState]:
    """Return a state of each run, after the same number of records, up to which the digests agree.

    It is close before the first difference: some thousand records at most.
    """
    sides = _Captures(a), _Captures(b)
    shorter = min(side.newest.progress.digest.records for side in sides)
    bounds = _Bounds(0, shorter + 1).with_marks(*(side.newest for side in sides))
    while bounds.end - bounds.same > _NEAR_ENOUGH:
        for share in _SHARES:
            target = bounds.same + int((bounds.end - bounds.same) * share)
            narrowed = bounds.with_marks(*(side.near(target) for side in sides))
            if narrowed != bounds:
                break
        else:
            break
        bounds = narrowed
    one, other = (side.at(bounds.same) for side in sides)
    return one, other


def _marks_of(state: RunState) -> dict[int, bytes]:
    digest = state.progress.digest
    return {one.records: one.value for one in digest.marks} | {digest.records: digest.value}
