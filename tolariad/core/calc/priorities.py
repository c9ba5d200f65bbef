"""The priorities of telemetry messages, as source 003 names them."""

from __future__ import annotations

import enum


class TelemetryPriority(enum.IntEnum):
    """How important a message is. EMERGENCY passes every queue; of the others the more important ones go first."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    CRITICAL = 4
    EMERGENCY = 5
