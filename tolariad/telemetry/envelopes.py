"""Telemetry messages as Leyline's: what travels on the bus. Pure.

A step becomes measurements, an emergency a signal, a piece of work a span, and every other event a sentence with its
fields. The envelope's id is made from the run and the event's number: a repeat has the same id.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tolariad import leyline as wire
from tolariad.core import messages as m
from tolariad.core.calc.priorities import TelemetryPriority as Priority
from tolariad.core.calc.text.plain import safe_lines
from tolariad.core.messages.sentences.text import sentence
from tolariad.telemetry.messages import RunEvent, TelemetryMessage
from tolariad.telemetry.spans import Span

# Oona's streams. Order holds within one of them.
NORMAL: Final = "oona.normal"
EMERGENCY: Final = "oona.emergency"
TELEMETRY: Final = "oona.telemetry"
VERSION: Final = 1
# After so many seconds a message may be dropped (fact sheet D.3).
_TTL_S: Final = {
    Priority.EMERGENCY: 300,
    Priority.CRITICAL: 600,
    Priority.HIGH: 1800,
    Priority.NORMAL: 3600,
    Priority.LOW: 7200,
}
_LEVELS: Final = {
    Priority.LOW: wire.TelemetryLevel.TELEMETRY_LEVEL_INFO,
    Priority.NORMAL: wire.TelemetryLevel.TELEMETRY_LEVEL_INFO,
    Priority.HIGH: wire.TelemetryLevel.TELEMETRY_LEVEL_WARNING,
    Priority.CRITICAL: wire.TelemetryLevel.TELEMETRY_LEVEL_ERROR,
    Priority.EMERGENCY: wire.TelemetryLevel.TELEMETRY_LEVEL_CRITICAL,
}
_PRIORITIES: Final = {
    Priority.LOW: wire.MessagePriority.MESSAGE_PRIORITY_LOW,
    Priority.NORMAL: wire.MessagePriority.MESSAGE_PRIORITY_NORMAL,
    Priority.HIGH: wire.MessagePriority.MESSAGE_PRIORITY_HIGH,
    Priority.CRITICAL: wire.MessagePriority.MESSAGE_PRIORITY_CRITICAL,
    # Leyline has none above. The stream tells it.
    Priority.EMERGENCY: wire.MessagePriority.MESSAGE_PRIORITY_CRITICAL,
}
_EMERGENCIES: Final = {
    m.Level.MINOR: wire.EmergencyLevel.EMERGENCY_LEVEL_NOTICE,
    m.Level.MAJOR: wire.EmergencyLevel.EMERGENCY_LEVEL_ELEVATED,
    m.Level.SEVERE: wire.EmergencyLevel.EMERGENCY_LEVEL_CONSERVATIVE,
    m.Level.CRITICAL: wire.EmergencyLevel.EMERGENCY_LEVEL_HALT,
}
_ATTEMPTS_MAX: Final = 5
# Texts of a program may be long: an attribute is no place for a stack.
_TEXT_MAX: Final = 1000


class Entry(msgspec.Struct, frozen=True):
    """What is written into a stream. `is_urgent`: into the stream of emergencies, as long as it takes more."""

    event_id: str
    stream: str
    is_urgent: bool
    envelope: bytes


def entries(run_id: bytes, run_name: str, messages: Sequence[TelemetryMessage]) -> list[Entry]:
    """Return the entries of these messages, in their order."""
    space = uuid.UUID(bytes=run_id)
    return [_entry(space, run_name, message) for message in messages]


def _entry(space: uuid.UUID, run_name: str, message: TelemetryMessage) -> Entry:
    priority = message.priority
    event_id = _event_id(space, message)
    content = _content(space, run_name, event_id, message)
    stream = TELEMETRY if priority is Priority.LOW else NORMAL
    is_urgent = priority >= Priority.HIGH
    envelope = wire.EventEnvelope(
        event_id=event_id,
        event_type=message.event_type,
        source_subsystem=message.source,
        created_at=_timestamp(message.timestamp_ns),
        ttl=Duration(seconds=_TTL_S[priority]),
        payload=content.SerializeToString(deterministic=True),
        payload_type=content.DESCRIPTOR.full_name,
        priority=_PRIORITIES[priority],
        routing_keys=[EMERGENCY if is_urgent else stream],
        delivery_guarantee=wire.DeliveryGuarantee.DELIVERY_GUARANTEE_AT_LEAST_ONCE,
        max_attempts=_ATTEMPTS_MAX,
        current_attempt=1,
    )
    return Entry(event_id, stream, is_urgent, envelope.SerializeToString(deterministic=True))


def _event_id(space: uuid.UUID, message: TelemetryMessage) -> str:
    match message.payload:
        case RunEvent(seq=seq):
            return str(uuid.uuid5(space, str(seq)))
        case Span(seq=seq, name=name):
            return str(uuid.uuid5(space, f"{seq} {name}"))
        case _:
            return str(uuid.uuid4())


def _content(space: uuid.UUID, run_name: str, event_id: str, message: TelemetryMessage) -> Message:
    run = {"run": safe_lines(run_name), "run_id": space.hex}
    payload = message.payload
    if isinstance(payload, RunEvent) and isinstance(event := payload.event, m.EmergencyRaised):
        return wire.EmergencySignal(
            version=VERSION,
            level=_EMERGENCIES[event.level],
            reason=safe_lines(event.why),
            origin=message.source,
            triggered_at=_timestamp(message.timestamp_ns),
            monotonic_time_ms=event.mono // 1_000_000,
            run_id=space.hex,
            attributes={**run, **_texts(event)},
        )
    packet = wire.TelemetryPacket(
        packet_id=event_id,
        timestamp=_timestamp(message.timestamp_ns),
        source_subsystem=message.source,
        level=_LEVELS[message.priority],
    )
    match payload:
        case Span():
            packet.spans.append(_trace(payload, run))
        case RunEvent(event=m.StepCompleted() as step):
            labels = {**run, "epoch": str(step.epoch), "step": str(step.step), "branch": str(step.branch)}
            packet.metrics.extend(
                wire.MetricPoint(name=name, value=value, attributes=labels) for name, value in _measured(step)
            )
        case RunEvent(event=event):
            packet.events.append(_told(message, event_id, sentence(event), {**run, **_texts(event)}))
        case dict():
            packet.events.append(_told(message, event_id, message.event_type, _scalars(payload)))
        case _:
            raise TypeError(f"the bus takes events, spans and mappings, not {type(payload).__name__}")
    return packet


def _measured(step: m.StepCompleted) -> Iterator[tuple[str, float]]:
    yield "tolaria.training.loss", step.loss
    if not step.grad_norm < 0:  # -1: not measured
        yield "tolaria.training.gradient_norm", step.grad_norm
    yield "tolaria.training.learning_rate", step.lr


def _told(message: TelemetryMessage, event_id: str, text: str, attributes: dict[str, str]) -> wire.TelemetryEvent:
    level = _LEVELS[message.priority]
    return wire.TelemetryEvent(event_id=event_id, description=safe_lines(text), level=level, attributes=attributes)


def _trace(span: Span, run: dict[str, str]) -> wire.TraceSpan:
    failed = {"failed": safe_lines(span.failed)} if span.failed else {}
    return wire.TraceSpan(
        span_id=f"{span.span_id:016x}",
        parent_span_id=f"{span.parent_id:016x}" if span.parent_id else "",
        name=span.name,
        start_time=_timestamp(span.start_ns),
        end_time=_timestamp(span.end_ns),
        attributes={**run, **_scalars(span.attributes), **failed},
    )


def _texts(event: m.Event) -> dict[str, str]:
    """Return the fields of an event that are single values, as texts."""
    return _scalars(msgspec.to_builtins(event))


def _scalars(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the texts, numbers and truth values among the fields, as texts that protobuf takes."""
    found = {}
    for name, value in fields.items():
        match value:
            case bool():
                found[safe_lines(str(name))] = str(value).lower()
            case float() if not math.isfinite(value):
                found[safe_lines(str(name))] = str(value)
            case str() | int() | float():
                found[safe_lines(str(name))] = safe_lines(str(value))[:_TEXT_MAX]
    return found


def _timestamp(wall_ns: int) -> Timestamp:
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    return Timestamp(seconds=seconds, nanos=nanos)
