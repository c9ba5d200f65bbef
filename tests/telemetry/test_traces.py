"""Traces without OpenTelemetry: what is missing is said, and nothing else is loaded."""

from __future__ import annotations

import sys

import pytest

from tolariad.core.calc.priorities import TelemetryPriority
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import TelemetryMessage, span_message
from tolariad.telemetry.spans import Span
from tolariad.telemetry.traces import Traces, TracesRefused, TracesUnusable, _failure

SPAN = Span(span_id=1, parent_id=0, name="run", start_ns=1, end_ns=2, seq=3)


async def test_a_missing_package_is_named(monkeypatch):
    """The extra to install is in the message; other messages need nothing."""
    for name in ("opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    traces = Traces("http://127.0.0.1:4318", bytes(16), "blue")
    await traces.publish([TelemetryMessage(1, TelemetryPriority.LOW, "tolaria", "StepCompleted", {})])
    with pytest.raises(TracesUnusable, match=r"pip install 'tolariad\[otel\]'"):
        await traces.publish([span_message(SPAN)])


@pytest.mark.parametrize(
    ("said", "error", "what"),
    [
        ("Failed to export spans batch code: 404, reason: Not Found", TracesRefused, "answered 404"),
        ("Failed to export batch code: 400, reason: code: 503", TracesRefused, "answered 400"),
        ("Failed to export spans batch code: 429, reason: x", Unreachable, "answered 429"),
        ("Failed to export spans batch code: 501, reason: x", Unreachable, "answered 501"),
        ("Failed to export spans batch code: None, reason: x", Unreachable, "does not answer"),
        ("Failed to export spans batch due to timeout, max retries or shutdown.", Unreachable, "does not answer"),
        ("", Unreachable, "does not answer"),
    ],
)
def test_only_spans_that_may_be_taken_later_are_sent_again(said, error, what):
    """A collector that refuses a batch would refuse it for ever, and hold up all that come after it."""
    found = _failure(said)

    assert type(found) is error
    assert what in str(found)
