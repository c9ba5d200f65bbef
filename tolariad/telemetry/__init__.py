"""Telemetry: the bounded priority queue, the bus it feeds, and the daemon's log. It publishes and never commands.

Promises: no caller ever waits here. A fault of a bus, a terminal or a disk costs messages, which are counted (P6).
"""

from tolariad.core.control.telemetry import TelemetryMessage, TelemetryPriority
from tolariad.telemetry.collector import OonaBus, TelemetryCollector
from tolariad.telemetry.sink import MemorySink

__all__ = ["MemorySink", "OonaBus", "TelemetryCollector", "TelemetryMessage", "TelemetryPriority"]
