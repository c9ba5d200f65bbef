"""Spans as OpenTelemetry's own packages take them: of an old run by the command, and live from a daemon."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.daemon.harness import SETS, ForkedDaemon, of_type
from tests.followers.recording import went_back, write_journal
from tests.web_server import Answer, web_server
from tolariad.cli.tolaria import main
from tolariad.core import messages as m
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import span_message
from tolariad.telemetry.spans import Span
from tolariad.telemetry.traces import Traces, TracesRefused, export_run

pytestmark = pytest.mark.outside
memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="opentelemetry (extra `otel`) is not installed"
)
service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
RUN = bytes(range(16))


@contextmanager
def collector() -> Iterator[tuple[str, list]]:
    """Run a collector, and give its URL and the spans that it got."""
    got: list = []

    def collect(_: str, path: str, body: bytes) -> Answer:
        if path != "/v1/traces":
            return Answer(404)
        for resource in service.ExportTraceServiceRequest.FromString(body).resource_spans:
            got.extend(span for scope in resource.scope_spans for span in scope.spans)
        return Answer(200)

    with web_server(collect) as url:
        yield url, got


def test_the_spans_of_a_run_are_as_the_sdk_shows_them():
    """One trace; the run is the parent of all; a second export has the same ids; each is valid JSON of OTLP."""
    exporter = memory.InMemorySpanExporter()
    events = list(enumerate(went_back().events, 1))
    count = sum(export_run(events, RUN, "blue", exporter))
    first = exporter.get_finished_spans()
    assert count == len(first) > 4
    exporter.clear()
    sum(export_run(events, RUN, "blue", exporter))
    again = exporter.get_finished_spans()
    (run,) = [span for span in first if span.name == "run"]

    assert [span.context.span_id for span in again] == [span.context.span_id for span in first]
    assert {span.context.trace_id for span in first} == {int.from_bytes(RUN)}
    assert {span.parent.span_id for span in first if span is not run} == {run.context.span_id}
    assert run.parent is None
    assert {"run", "epoch", "rollback", "checkpoint"} <= {span.name for span in first}
    assert all(list(span.attributes)[-2:] == ["tolaria.run", "tolaria.seq"] for span in first)
    assert all('"name"' in span.to_json() for span in first)


@pytest.fixture
def logged():
    """What reaches the log of the run. pytest's `caplog` also listens to loggers that pass nothing on."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize(("code", "error"), [(404, TracesRefused), (503, Unreachable), (0, Unreachable)])
async def test_a_collector_that_takes_nothing_is_said_once_and_by_us(code, error, logged):
    """The exporter's own lines, three for each try, stay out of the run's log. 0: nobody answers."""
    with web_server(lambda *_: Answer(code)) as url:
        traces = Traces(url if code else "http://127.0.0.1:1", RUN, "blue")
        with pytest.raises(error):
            await traces.publish([span_message(Span(span_id=1, parent_id=0, name="run", start_ns=1, end_ns=2, seq=3))])

    assert logged == []


def test_an_old_run_is_sent_by_the_command(tmp_path, capsys):
    """The collector has every span, with the times of the journal; an address that is none is refused."""
    world = went_back()
    write_journal(world.events, tmp_path / "run" / "journal")
    with collector() as (url, got):
        with pytest.raises(SystemExit) as ended:
            main(["journal", "export", str(tmp_path / "run"), "--otlp", url])
        assert ended.value.code == 0
        with pytest.raises(SystemExit) as refused:
            main(["journal", "export", str(tmp_path / "run"), "--otlp", "localhost:4318"])
        assert refused.value.code == 2

    epochs = [span for span in got if span.name == "epoch"]
    ends = [event.wall for event in world.events if isinstance(event, m.EpochFinished)]
    assert [span.end_time_unix_nano for span in epochs] == ends
    assert f"{len(got)} spans sent" in capsys.readouterr().err


def test_a_live_run_sends_its_spans_until_its_end(tmp_path):
    """The last one too, which is the run's own."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with collector() as (url, got):
        daemon = ForkedDaemon(run_dir, sets=[*SETS, f"telemetry.otlp_endpoint={url}"])
        assert daemon.wait() == 0, daemon.stderr

    names = [span.name for span in got]
    assert names.count("epoch") == len(of_type(run_dir, m.EpochFinished)) == 3
    assert names.count("run") == 1
    assert names.count("checkpoint") == len(of_type(run_dir, m.CheckpointCommitted))
