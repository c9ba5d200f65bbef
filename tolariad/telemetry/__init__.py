"""The daemon's log and the trainer's, metrics, and the queues before the receivers of telemetry.

Promises: no caller ever waits here. A fault of a terminal, a disk or a receiver costs lines or messages, which are
counted (P6).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tolariad.core.calc.priorities import TelemetryPriority
    from tolariad.telemetry.collector import TelemetryCollector
    from tolariad.telemetry.messages import TelemetryMessage

__all__ = ["TelemetryCollector", "TelemetryMessage", "TelemetryPriority"]

# Each public name and its module. They are loaded on first use: commands that only read load no asyncio.
_HOMES = {
    "TelemetryCollector": "tolariad.telemetry.collector",
    "TelemetryMessage": "tolariad.telemetry.messages",
    "TelemetryPriority": "tolariad.core.calc.priorities",
}


def __getattr__(name: str) -> Any:
    """Import the module that holds ``name`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
