"""The spans of a run's journal, sent to a collector of OpenTelemetry: `tolaria journal export RUN --otlp URL`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from journal.reader import Reader
from tolariad.cli import output
from tolariad.cli.errors import CommandError, Exit
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.traces import TracesRefused, TracesUnusable, export_run, exporter_to


def send_spans(journal: Path, endpoint: str) -> int:
    """Send every span of the run, and return how many there were. Raises CommandError."""
    if not endpoint.lower().startswith(("http://", "https://")):
        raise CommandError(Exit.USAGE, f"{endpoint} is no address of a collector, such as http://localhost:4318")
    count = 0
    with Reader(journal) as reader:
        try:
            for number in export_run(_events(reader), reader.run_id, journal.parent.name, exporter_to(endpoint)):
                count += number
        except TracesUnusable as error:
            raise CommandError(Exit.NO, f"nothing was sent: {error}", name="TracesUnusable") from error
        except (TracesRefused, Unreachable) as error:
            hint = "give the same command again: spans that are sent twice have the same ids"
            raise CommandError(Exit.NO, f"{endpoint}: {error}", hint=hint, name=type(error).__name__) from error
    output.note(f"{output.counted(count, 'span')} sent to {endpoint}")
    return count


def _events(reader: Reader) -> Iterator[tuple[int, m.Event]]:
    for entry in reader:
        try:
            event = decode_event(entry.event)
        except (ValueError, RecursionError):
            continue  # `tolaria events` says that it cannot be read
        if not isinstance(event, Unknown):
            yield entry.seq, event
