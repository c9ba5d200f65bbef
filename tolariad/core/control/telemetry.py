"""What a telemetry message is, and how important: values that every room may name.

It must not know: queues, buses, metrics, logs.
"""

from __future__ import annotations

import enum

import msgspec


class TelemetryPriority(enum.IntEnum):
    """From what may be lost first to what must arrive; 1 to 4 are Leyline's MessagePriority."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    CRITICAL = 4
    EMERGENCY = 5


class TelemetryMessage(msgspec.Struct, frozen=True):
    """One message to the bus. `timestamp_ns` is wall time; `payload` holds plain values only."""

    timestamp_ns: int
    priority: TelemetryPriority
    source: str
    event_type: str
    payload: dict[str, object]
