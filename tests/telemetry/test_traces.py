"""Traces without OpenTelemetry: what is missing is said, and nothing else is loaded."""

from __future__ import annotations

import sys

import pytest

from tolariad.core.calc.priorities import TelemetryPriority
from tolariad.telemetry.messages import TelemetryMessage, span_message
from tolariad.telemetry.spans import Span
from tolariad.telemetry.traces import Traces, TracesUnusable

SPAN = Span(span_id=1, parent_id=0, name="run", start_ns=1, end_ns=2, seq=3)


async def test_a_missing_package_is_named(monkeypatch):
    """The extra to install is in the message; other messages need nothing."""
    for name in ("opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    traces = Traces("http://127.0.0.1:4318", bytes(16), "blue")
    await traces.publish([TelemetryMessage(1, TelemetryPriority.LOW, "tolaria", "StepCompleted", {})])
    with pytest.raises(TracesUnusable, match=r"pip install 'tolariad\[otel\]'"):
        await traces.publish([span_message(SPAN)])
