"""Spans for OpenTelemetry, extra `otel`: live to a collector, and of an old run.

Promises: nothing of OpenTelemetry is loaded before the first span is sent. Ids are those of `spans.py`, so a second
export of a run repeats spans and adds none. A collector that does not answer gets the same spans later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tolariad.core import messages as m
from tolariad.core.calc.text.plain import safe_lines
from tolariad.loop_files import in_thread
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import TelemetryMessage
from tolariad.telemetry.spans import Span, Spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_LIMIT_S: Final = 5.0
_AT_ONCE: Final = 256
_PATH: Final = "/v1/traces"
_HINT: Final = "it needs OpenTelemetry: pip install 'tolariad[otel]'"


class TracesUnusable(Exception):
    """The packages of OpenTelemetry are missing."""


class Traces:
    """A receiver that takes spans and leaves other messages out."""

    def __init__(self, endpoint: str, run_id: bytes, run_name: str) -> None:
        """`endpoint`: the URL of an OTLP collector, with or without the path of traces."""
        self._endpoint = endpoint
        self._run_id = run_id
        self._run_name = run_name
        self._exporter: SpanExporter | None = None

    async def publish(self, messages: Sequence[TelemetryMessage]) -> None:
        """Send the spans. Raises Unreachable, TracesUnusable."""
        spans = [message.payload for message in messages if isinstance(message.payload, Span)]
        if spans:
            await in_thread(self._export, spans)

    async def send_immediate(self, message: TelemetryMessage) -> None:
        """Do the same: no span passes the queue."""
        await self.publish([message])

    async def close(self) -> None:
        """The exporter holds no connection that must be closed in order."""

    def _export(self, spans: list[Span]) -> None:
        if self._exporter is None:
            self._exporter = exporter_to(self._endpoint)
        if not _sent(self._exporter, [readable(span, self._run_id, self._run_name) for span in spans]):
            raise Unreachable("the collector does not take the spans")


def exporter_to(endpoint: str) -> SpanExporter:
    """Return an exporter to an OTLP collector over HTTP. Raises TracesUnusable."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracesUnusable(_HINT) from error
    is_bare = urlsplit(endpoint).path in ("", "/")
    return OTLPSpanExporter(endpoint.rstrip("/") + _PATH if is_bare else endpoint, timeout=_LIMIT_S)


def export_run(
    events: Iterable[tuple[int, m.Event]], run_id: bytes, run_name: str, exporter: SpanExporter
) -> Iterator[int]:
    """Send the spans of a run's events, and yield how many of each batch. Raises Unreachable."""
    made, batch = Spans(run_id), []
    for seq, event in events:
        if (span := made.add(seq, event)) is not None:
            batch.append(readable(span, run_id, run_name))
        if len(batch) == _AT_ONCE:
            yield _delivered(exporter, batch)
            batch = []
    if batch:
        yield _delivered(exporter, batch)


def _delivered(exporter: SpanExporter, batch: list[ReadableSpan]) -> int:
    if not _sent(exporter, batch):
        raise Unreachable("the collector does not take the spans")
    return len(batch)


def _sent(exporter: SpanExporter, spans: list[ReadableSpan]) -> bool:
    from opentelemetry.sdk.trace.export import SpanExportResult

    return exporter.export(spans) is SpanExportResult.SUCCESS


def readable(span: Span, run_id: bytes, run_name: str) -> ReadableSpan:
    """Return a span as OpenTelemetry's exporters take it. Raises TracesUnusable."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode
    except ImportError as error:
        raise TracesUnusable(_HINT) from error

    def context(span_id: int) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int.from_bytes(run_id) or 1, span_id, is_remote=False, trace_flags=flags)

    name = safe_lines(run_name)
    # Run and number last: backends with a limit keep the last attributes.
    own = {key: safe_lines(value) if isinstance(value, str) else value for key, value in span.attributes.items()}
    return ReadableSpan(
        span.name,
        context=context(span.span_id),
        parent=context(span.parent_id) if span.parent_id else None,
        resource=Resource({"service.name": "tolariad", "service.instance.id": run_id.hex(), "tolaria.run": name}),
        attributes={**own, "tolaria.run": name, "tolaria.seq": span.seq},
        status=Status(StatusCode.ERROR, safe_lines(span.failed)) if span.failed else Status(StatusCode.OK),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )
