"""Why something happened: the chain of causes up to where it began, and what came of it.

Promises: follows what the events say (`cause`, `root`), guesses nothing; a walk is bounded and says where it stopped.
It must not know: how an answer is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec

from journal import Entry
from journal.reader import Reader
from tolariad.core.run import TRANSITIONS, Phase
from tolariad.core.vocabulary import EVENT_TYPES
from tolariad.forensics.moment import state_at
from tolariad.forensics.places import Kind, Place
from tolariad.forensics.timeline import Brief, Query, backwards, brief, decode_fields, first_at

DEPTH_MAX: Final = 64
CONSEQUENCES_MAX: Final = 50
SEARCHED_MAX: Final = 20_000

# What a word asks for: the newest event of the first of these types that there is one of; `|` stands between types of which
# the newest is meant, whichever it is.
TOPICS: Final[dict[str, tuple[str, ...]]] = {
    "pause": ("RunPaused", "PauseRequested"),
    "resume": ("RunResumed", "ResumeRequested"),
    "stop": ("RunStopped", "StopRequested"),
    "death": ("TrainerDied",),
    "hang": ("TrainerHung",),
    "failure": ("RunFailed",),
    "freeze": ("RunFrozen",),
    "checkpoint": ("CheckpointCommitted", "CheckpointAborted"),
    "rejected": ("CheckpointRejected", "CheckpointUnfit"),
    "rerun": ("RerunFinished", "RerunBegun"),
    "completion": ("RunCompleted",),
    "spike": ("InstabilityDetected", "StepSkipped"),
    "skip": ("StepSkipped",),
    "rollback": ("RolledBack|RollbackAborted", "RollbackBegun"),
    "violation": ("LrViolationDetected",),
    "conservative": ("ConservativeModeEntered", "ConservativeModeLeft"),
}
# `lr`: why the rates are what they are, by the newest of these, whichever it is.
_RATE_CHANGES: Final = ("RateChanged", "PlateauReached")
_RATE_ORDERS: Final = ("RateOrderAborted", "RateOrdered")


class NoAnswer(LookupError):
    """Nothing in the journal fits the topic."""


class Link(msgspec.Struct, frozen=True):
    """One event of an answer."""

    seq: int
    fields: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`causes`: from the first of the chain down to the event before `event`; `consequences`: what it led to, in order.

    `searched_all` is False where more consequences may lie beyond what was looked through.
    """

    topic: str
    event: Link
    causes: tuple[Link, ...]
    consequences: tuple[Link, ...]
    searched_all: bool


def why(reader: Reader, topic: str, *, place: Place | None = None, until_seq: int | None = None) -> Answer:
    """Explain a topic: a place (`seq:N`, `step:N`), a checkpoint's id, a word of TOPICS, `phase`, an event type's name.

    `until_seq`: as of then. Raises NoAnswer.
    """
    entry = _at_place(reader, place) if place is not None else _newest(reader, topic, until_seq)
    if entry is None:
        raise NoAnswer(_nothing(topic, by_then=until_seq is not None))
    event = Link(entry.seq, decode_fields(entry.event))
    consequences, complete = _consequences(reader, entry, until_seq)
    verified = _first_step_with(reader, event, until_seq)
    return Answer(
        topic=topic,
        event=event,
        causes=_causes(reader, event),
        consequences=(*consequences, *verified),
        searched_all=complete,
    )


def _nothing(topic: str, *, by_then: bool) -> str:
    then = "by then " if by_then else ""
    if topic in TOPICS:
        return (
            f"{then}this run {'had' if by_then else 'has'} no {' or '.join(TOPICS[topic]).replace('|', ' or ')} event"
        )
    if topic == "lr":
        return f"{then}no order and no plateau {'had ' if by_then else ''}changed a rate of this run: its schedules alone did"
    words = ", ".join(sorted((*TOPICS, "lr")))
    return f"nothing fits {topic!r}; ask for seq:N, step:N, a checkpoint's id, an event type, or one of: phase, {words}"


def _entry(reader: Reader, seq: int) -> Entry | None:
    found = next(iter(reader.seek(seq=seq)), None)
    return found if found is not None and found.seq == seq else None


def _at_place(reader: Reader, place: Place) -> Entry | None:
    if place.kind is not Kind.STEP:
        return _entry(reader, first_at(reader, place))
    for entry in reader.seek(step=place.value):
        told = brief(entry.event)
        if told.type == "StepCompleted" and told.step == place.value:
            return entry
        if entry.step > place.value:
            return None
    return None


def _first_step_with(reader: Reader, event: Link, until_seq: int | None) -> tuple[Link, ...]:
    """Of a rate that acts from a step on: that step's record, for which the kernel has checked the rates' digest.

    `verified` is what it was checked for. None where the group's rate was changed once more before the step was made.
    """
    if event.fields.get("type") not in _RATE_CHANGES:
        return ()
    entry = _at_place(reader, Place(Kind.STEP, int(event.fields["applied_before_step"])))
    if entry is None or (until_seq is not None and entry.seq > until_seq) or _changed_again(reader, event, entry.seq):
        return ()
    verified = {"group": event.fields["group"], "rate": event.fields["rate"]}
    return (Link(entry.seq, {**decode_fields(entry.event), "verified": verified}),)


def _changed_again(reader: Reader, event: Link, before_seq: int) -> bool:
    for entry in reader.seek(seq=event.seq + 1):
        if entry.seq >= before_seq:
            return False
        if brief(entry.event).type in _RATE_CHANGES and decode_fields(entry.event)["group"] == event.fields["group"]:
            return True
    return False


def _newest(reader: Reader, topic: str, until_seq: int | None) -> Entry | None:
    until = Place(Kind.SEQ, until_seq) if until_seq is not None else None

    def first(wanted: Callable[[Brief], bool]) -> Entry | None:
        return next((one for one in backwards(reader, Query(until=until)) if wanted(brief(one.event))), None)

    def newest_of(types: list[str]) -> Entry | None:
        return first(lambda told: told.type in types)

    if topic == "phase":
        types = _leading_to(state_at(reader, until_seq).state.run.phase)
        return first(lambda told: told.type in types)
    if topic == "lr":
        return first(lambda told: told.type in _RATE_CHANGES) or first(lambda told: told.type in _RATE_ORDERS)
    for names in TOPICS.get(topic, ()):
        found = newest_of(names.split("|"))
        if found is not None:
            return found
    if topic in TOPICS:
        return None
    if topic in EVENT_TYPES:
        return first(lambda told: told.type == topic)
    return first(lambda told: told.id == topic and told.type.startswith("Checkpoint"))


def _leading_to(phase: Phase) -> set[str]:
    return {kind.__name__ for kind, table in TRANSITIONS.items() if phase in table.values()}


def _causes(reader: Reader, event: Link) -> tuple[Link, ...]:
    """Up the chain; an event may only be caused by an earlier one, so this ends."""
    chain: list[Link] = []
    at = event
    while len(chain) < DEPTH_MAX:
        cause = int(at.fields.get("cause", 0))
        entry = _entry(reader, cause) if 0 < cause < at.seq else None
        if entry is None:
            break
        at = Link(entry.seq, decode_fields(entry.event))
        chain.append(at)
    return tuple(reversed(chain))


def _consequences(reader: Reader, of: Entry, until_seq: int | None) -> tuple[tuple[Link, ...], bool]:
    """What the event caused, directly or through others."""
    family = {of.seq}
    found: list[Link] = []
    looked = 0
    for entry in islice(reader.seek(seq=of.seq + 1), SEARCHED_MAX):
        if until_seq is not None and entry.seq > until_seq:
            return tuple(found), True
        looked += 1
        if brief(entry.event).cause in family:
            family.add(entry.seq)
            found.append(Link(entry.seq, decode_fields(entry.event)))
            if len(found) == CONSEQUENCES_MAX:
                return tuple(found), False
    return tuple(found), looked < SEARCHED_MAX
