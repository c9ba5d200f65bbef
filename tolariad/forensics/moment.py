"""The state of a run at any moment of its history: the nearest capture, and the events after it.

Promises: the same fold as the living run's; what this version does not know is passed by and said; a moment that has not
come is said to be none, never answered with another one. It must not know: how a state is shown.
"""

from __future__ import annotations

from journal.reader import Reader
from tolariad.core.lines import Lines
from tolariad.core.replay import Replayed, newest_usable, replay_records
from tolariad.forensics.places import Kind, Place
from tolariad.forensics.timeline import brief, last_at


class NoSuchStep(LookupError):
    """No branch of that number holds that step."""


class NotReached(LookupError):
    """The run has not come to that event, step or epoch."""


def state_at(reader: Reader, seq: int | None = None) -> Replayed:
    """The state after event `seq`; None: after the last. Raises ReplayError, JournalDamaged."""
    state = newest_usable(reader.captures(seq))
    return replay_records(state, reader.records(after_seq=state.seq), until_seq=seq)


def seq_at(reader: Reader, place: Place) -> int:
    """The event whose state is the one at `place`: of a step, right after it was applied.

    Raises NoSuchStep where the step's branch never had it, NotReached where the run has not come to it. A time that has not
    come is now.
    """
    if place.kind is Kind.SEQ and place.value > reader.last_seq:
        raise NotReached(f"there is no event {place.value}: the last one is {reader.last_seq}")
    if place.kind is Kind.EPOCH and next(iter(reader.seek(epoch=place.value)), None) is None:
        raise NotReached(f"epoch {place.value} has not begun")
    if place.kind is not Kind.STEP:
        return last_at(reader, place)
    state = state_at(reader).state
    lines, last = state.rollbacks.lines, state.progress.step
    if place.branch is None and place.value > last:
        raise NotReached(f"step {place.value} has not been reached: the last one is {last}")
    if lines.forks or place.branch:
        return _seq_on(reader, lines, place)
    reader.seek(step=place.value)
    for entry in reader:
        told = brief(entry.event)
        if told.type == "StepCompleted" and told.step == place.value:
            return entry.seq
        if entry.step > place.value:
            break
    return last_at(reader, place)


def _seq_on(reader: Reader, lines: Lines, place: Place) -> int:
    """The same where the run went back: a step of one branch, found behind that branch's fork."""
    branch = lines.branch_of(place.value) if place.branch is None else place.branch
    fork = next((one for one in lines.forks if one.branch == branch), None)
    reader.seek(seq=fork.seq if fork else 1)
    for entry in reader:
        told = brief(entry.event)
        if told.type == "StepCompleted" and (told.branch, told.step) == (branch, place.value):
            return entry.seq
    if place.branch is None:
        return last_at(reader, place)
    raise NoSuchStep(f"branch {branch} has no step {place.value}")
