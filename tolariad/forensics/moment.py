"""The state of a run at any moment of its history: the nearest capture, and the events after it.

Promises: the fold is that of the live run. Events that this version does not know are skipped and reported. A moment
that the run has not reached raises NotReached; it is never answered with another moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.errors import JournalDamaged
from journal.reader import Reader
from journal.records import JournalEntry, Mark
from journal.rows import Rows, rows_and_records
from tolariad.core.calc.steps.branches import Branches
from tolariad.core.calc.steps.many import ManySteps
from tolariad.core.calc.steps.table import steps_in
from tolariad.core.state.replay import Replayed, newest_usable, replay_records
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.timeline import Query, backwards, brief, entry_of_step, last_at

# The events that say at which step a run is: no other changes that.
_AT_A_STEP: Final = ("StepCompleted", "RolledBack")
# So few events are read sooner than a further one is found by halving.
_NEAR_ENOUGH: Final = 128


class NoSuchStep(LookupError):
    """The branch of that number has no such step."""


class NotReached(LookupError):
    """The run has not reached that event, step or epoch."""


def state_at(reader: Reader, seq: int | None = None) -> Replayed:
    """Return the state after event `seq`, or after the last event. Raises ReplayError, JournalDamaged."""
    state = newest_usable(reader.captures(seq))
    return replay_records(state, _records(reader, state.seq, seq), until_seq=seq)


def _records(reader: Reader, after_seq: int, until_seq: int | None) -> Iterator[JournalEntry | Mark | Rows[ManySteps]]:
    """Yield what is folded. Damage after event `until_seq` is not met."""
    reached = after_seq
    try:
        for record in rows_and_records(reader, steps_in, after_seq):
            reached = record.seq + (record.count - 1 if isinstance(record, Rows) else 0)
            yield record
    except JournalDamaged:
        if until_seq is None or reached < until_seq:
            raise


class End(NamedTuple):
    """The last event of a run, its last step, and its branches."""

    seq: int
    step: int
    branches: Branches


def end_of(reader: Reader) -> End:
    """Return what `state_at` says of the end, without folding the steps after the newest capture.

    Raises JournalDamaged. Raises ReplayError only if the run went back after the capture.
    """
    state, last_seq = newest_usable(reader.captures()), reader.last_seq
    after = Query(types=_AT_A_STEP, since=JournalPosition(PositionKind.SEQ, state.seq + 1))
    last = next(backwards(reader, after), None)
    told = brief(last.event) if last is not None else None
    if told is not None and (told.type != "StepCompleted" or told.branch != state.progress.branch or told.step is None):
        state = state_at(reader).state
        return End(state.seq, state.progress.step, state.rollbacks.branches)
    step = told.step if told is not None and told.step is not None else state.progress.step
    return End(last_seq, step, state.rollbacks.branches)


def seq_at(reader: Reader, position: JournalPosition) -> int:
    """Return the event after which the run was at `position`. For a step: the event that records it.

    Raises NoSuchStep if the branch has no such step, NotReached if the run has not reached the position. A time in the
    future counts as now.
    """
    if position.kind is PositionKind.SEQ and position.value > reader.last_seq:
        raise NotReached(f"there is no event {position.value}: the last one is {reader.last_seq}")
    if position.kind is PositionKind.EPOCH and next(iter(reader.seek(epoch=position.value)), None) is None:
        raise NotReached(f"epoch {position.value} has not begun")
    if position.kind is not PositionKind.STEP:
        return last_at(reader, position)
    _, last, branches = end_of(reader)
    if position.branch is None and position.value > last:
        raise NotReached(f"step {position.value} has not been reached: the last one is {last}")
    if branches.forks or position.branch:
        return _seq_on(reader, branches, position)
    entry = entry_of_step(reader, position.value)
    return entry.seq if entry is not None else last_at(reader, position)


def _seq_on(reader: Reader, branches: Branches, position: JournalPosition) -> int:
    """As `seq_at`, for a run that was rolled back: find a step of one branch, after the fork of that branch."""
    branch = branches.branch_of(position.value) if position.branch is None else position.branch
    first, last = _span(reader, branches, branch)
    forgotten = bool(branches.forks) and branches.forks[0].branch > 1
    if not (forgotten and first == 1):
        first = _near(reader, position.value, first, last)
    for entry in reader.seek(seq=first):
        if entry.seq > last:
            break
        told = brief(entry.event)
        if told.type == "StepCompleted" and told.branch == branch and told.step is not None:
            if told.step == position.value:
                return entry.seq
            if told.step > position.value:
                break
    if position.branch is None:
        return last_at(reader, position)
    raise NoSuchStep(f"branch {branch} has no step {position.value}")


def _span(reader: Reader, branches: Branches, branch: int) -> tuple[int, int]:
    """Return the first and the last event while this branch was trained; a run trains one branch at a time."""
    begins = {fork.branch: fork.seq for fork in branches.forks}
    first = begins.get(branch, 1)
    return first, min((seq for seq in begins.values() if seq > first), default=reader.last_seq)


def _near(reader: Reader, step: int, first: int, last: int) -> int:
    """Return an event from `first` on that is shortly before a step. The steps of a branch rise from event to event."""
    while last - first > _NEAR_ENOUGH:
        middle = (first + last) // 2
        found = _step_from(reader, middle, last)
        if found is None or found >= step:
            last = middle
        else:
            first = middle
    return first


def _step_from(reader: Reader, seq: int, last: int) -> int | None:
    """Return the first step that was recorded from event `seq` on, up to event `last`."""
    for entry in reader.seek(seq=seq):
        if entry.seq > last:
            return None
        told = brief(entry.event)
        if told.type == "StepCompleted" and told.step is not None:
            return told.step
    return None
