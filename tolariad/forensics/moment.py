"""The state of a run at any moment of its history: the nearest capture, and the events after it.

Promises: the same fold as the living run's; what this version does not know is passed by and said. It must not know:
how a state is shown.
"""

from __future__ import annotations

from journal.reader import Reader
from tolariad.core.replay import Replayed, newest_usable, replay_records
from tolariad.forensics.places import Kind, Place
from tolariad.forensics.timeline import brief, last_at


def state_at(reader: Reader, seq: int | None = None) -> Replayed:
    """The state after event `seq`; None: after the last. Raises ReplayError, JournalDamaged."""
    state = newest_usable(reader.captures(seq))
    return replay_records(state, reader.records(after_seq=state.seq), until_seq=seq)


def seq_at(reader: Reader, place: Place) -> int:
    """The event whose state is the one at `place`: of a step, right after it was applied."""
    if place.kind is not Kind.STEP:
        return last_at(reader, place)
    reader.seek(step=place.value)
    for entry in reader:
        told = brief(entry.event)
        if told.type == "StepCompleted" and told.step == place.value:
            return entry.seq
        if entry.step > place.value:
            break
    return last_at(reader, place)
