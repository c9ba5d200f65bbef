"""Telemetry messages, and how important each event of a run is. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast, get_args

import msgspec

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.priorities import TelemetryPriority as Priority
from tolariad.telemetry.spans import Span

SOURCE: Final = "tolaria"
_SAID: Final = frozenset(get_args(st.SaidEvent))


class TelemetryMessage(msgspec.Struct, frozen=True):
    """One message. `timestamp_ns`: Unix time; `source`: the sender; `payload`: what the receivers read."""

    timestamp_ns: int
    priority: Priority
    source: str
    event_type: str
    payload: object


class RunEvent(msgspec.Struct, frozen=True):
    """A durable event, its number, and where the run was then."""

    seq: int
    event: m.Event
    epoch: int
    step: int
    phase: str


def _emergency(event: m.Event) -> Priority:
    is_severe = cast("m.EmergencyRaised", event).level in (m.Level.SEVERE, m.Level.CRITICAL)
    return Priority.EMERGENCY if is_severe else Priority.HIGH


def _said(event: m.Event) -> Priority:
    if not st.is_said(event):
        return Priority.LOW
    return Priority.HIGH if st.is_trouble(cast("st.SaidEvent", event)) else Priority.NORMAL


_PRIORITIES: Final[dict[type[m.Event], Priority]] = {
    **dict.fromkeys((m.RunFailed, m.RunFrozen, m.RerunDiverged), Priority.CRITICAL),
    **dict.fromkeys((m.RunCompleted, m.RunStopped, m.RolledBack), Priority.HIGH),
    **dict.fromkeys(
        (
            m.RunStarted,
            m.RunPaused,
            m.RunResumed,
            m.NoteAdded,
            m.EpochFinished,
            m.ValidationFinished,
            m.CheckpointBegun,
            m.CheckpointCommitted,
            m.RollbackBegun,
            m.TrainerStarted,
        ),
        Priority.NORMAL,
    ),
    m.StepCompleted: Priority.LOW,
}
_ASKED: Final[dict[type[m.Event], Callable[[m.Event], Priority]]] = {
    m.EmergencyRaised: _emergency,
    **{kind: _said for kind in _SAID if kind not in _PRIORITIES},
}


def priority_of(event: m.Event) -> Priority:
    """Return how important an event is: steps and bookkeeping are LOW, troubles HIGH, ends of the run above."""
    kind = type(event)
    if (priority := _PRIORITIES.get(kind)) is not None:
        return priority
    asked = _ASKED.get(kind)
    return Priority.LOW if asked is None else asked(event)


def is_news(event: m.Event) -> bool:
    """Return False for an event of a type that the console reports, if it would not report this one."""
    return type(event) not in _SAID or st.is_said(event)


def message_of(seq: int, event: m.Event, *, epoch: int, step: int, phase: str) -> TelemetryMessage:
    """Return the message of a durable event."""
    payload = RunEvent(seq, event, epoch, step, phase)
    return TelemetryMessage(event.wall, priority_of(event), SOURCE, type(event).__name__, payload)


def span_message(span: Span) -> TelemetryMessage:
    """Return the message of a piece of work that has ended."""
    priority = Priority.HIGH if span.failed else Priority.NORMAL
    return TelemetryMessage(span.end_ns, priority, SOURCE, f"span {span.name}", span)
