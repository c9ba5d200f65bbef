"""Spans for OpenTelemetry, extra `otel`: live to a collector, and of an old run.

Promises: nothing of OpenTelemetry is loaded before the first span is sent. Ids are those of `spans.py`, so a second
export of a run repeats spans and adds none. A collector that does not answer gets the same spans later; one that
refuses them (a code 4xx) does not. What the exporter logs of it stays out of the run's log, which says it once.
"""

from __future__ import annotations

import logging
import re
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


# The codes with which a collector asks for another try.
_FOR_LATER: Final = (408, 429)
_CODE: Final = re.compile(r"code: ([1-9]\d\d)\b")


class TracesUnusable(Exception):
    """The packages of OpenTelemetry are missing."""


class TracesRefused(Exception):
    """The collector does not take these spans, whenever they are sent."""


class Traces:
    """A receiver that takes spans and leaves other messages out."""

    def __init__(self, endpoint: str, run_id: bytes, run_name: str) -> None:
        """`endpoint`: the URL of an OTLP collector, with or without the path of traces."""
        self._endpoint = endpoint
        self._run_id = run_id
        self._run_name = run_name
        self._exporter: SpanExporter | None = None

    async def publish(self, messages: Sequence[TelemetryMessage]) -> None:
        """Send the spans. Raises Unreachable, TracesRefused, TracesUnusable."""
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
        _send(self._exporter, [readable(span, self._run_id, self._run_name) for span in spans])


def exporter_to(endpoint: str) -> SpanExporter:
    """Return an exporter to an OTLP collector over HTTP. Raises TracesUnusable."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracesUnusable(_HINT) from error
    logger = logging.getLogger("opentelemetry.exporter")
    logger.addHandler(_SAID)
    logger.propagate = False
    is_bare = urlsplit(endpoint).path in ("", "/")
    return OTLPSpanExporter(endpoint.rstrip("/") + _PATH if is_bare else endpoint, timeout=_LIMIT_S)


def export_run(
    events: Iterable[tuple[int, m.Event]], run_id: bytes, run_name: str, exporter: SpanExporter
) -> Iterator[int]:
    """Send the spans of a run's events, and yield how many of each batch. Raises as Traces.publish."""
    made, batch = Spans(run_id), []
    for seq, event in events:
        if (span := made.add(seq, event)) is not None:
            batch.append(readable(span, run_id, run_name))
        if len(batch) == _AT_ONCE:
            _send(exporter, batch)
            yield len(batch)
            batch = []
    if batch:
        _send(exporter, batch)
        yield len(batch)


class _Said(logging.Handler):
    """Keeps what the exporter has logged last: its result says only that it failed."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


_SAID: Final = _Said()


def _send(exporter: SpanExporter, spans: list[ReadableSpan]) -> None:
    from opentelemetry.sdk.trace.export import SpanExportResult

    _SAID.text = ""
    if exporter.export(spans) is not SpanExportResult.SUCCESS:
        raise _failure(_SAID.text)


def _failure(said: str) -> Unreachable | TracesRefused:
    """Return the error of an export that failed, from what the exporter has logged of it."""
    found = _CODE.search(said)
    if found is None:
        return Unreachable("the collector does not answer")
    code, what = int(found[1]), f"the collector answered {found[1]}"
    return TracesRefused(what) if 400 <= code < 500 and code not in _FOR_LATER else Unreachable(what)


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
