"""The daemon's log. Every module logs through `logging`; this one decides the format and the destination.

Promises: a logging call never waits for stderr. On a terminal a record is a line of text, otherwise one JSON object.
"""

from __future__ import annotations

import logging
import os
from typing import Final, Literal

import msgspec
import structlog

from tolariad.core.plain import escaped_json_bytes, safe_lines
from tolariad.telemetry.writer import BoundedWriter

LogFormat = Literal["auto", "text", "json"]
_CLEAR_LINE: Final = b"\r\x1b[K"
# JSON is for programs: UTC, RFC 3339 with microseconds. Text is for people: local time.
_STAMPS: Final = {
    "json": structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True),
    "text": structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S.%f", utc=False),
}


class QueueHandler(logging.Handler):
    """Formats a record in the calling thread and queues its bytes in a writer, whose thread does the waiting."""

    def __init__(self, writer: BoundedWriter) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line. If formatting fails, logging's own error handling reports it."""
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001 - a wrong format string must not raise in the code that logs
            self.handleError(record)
            return
        self.writer.write(line.encode("utf-8", "backslashreplace"))


def formatter(style: Literal["text", "json"], *, colours: bool = False) -> logging.Formatter:
    """Return the formatter: structlog formats every record, also those of other libraries."""
    render: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)
        if style == "text"
        else structlog.processors.JSONRenderer(serializer=_to_json)
    )
    chain: list[structlog.typing.Processor] = [
        _only_shown,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _STAMPS[style],
    ]
    if style == "json":
        chain.append(structlog.processors.format_exc_info)
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=chain, processors=last)


def _only_shown(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A message may hold an error's text, and that anything at all: a terminal must not obey it."""
    event["event"] = safe_lines(str(event["event"]))
    return event


def _to_json(event: object, **_: object) -> str:
    return escaped_json_bytes(msgspec.json.encode(event, enc_hook=repr)).decode()


def start_logging(level: str, style: LogFormat, descriptor: int = 2) -> BoundedWriter:
    """Send every record of `level` and above to `descriptor`. Return the writer; pass it to `stop_logging` last."""
    terminal = os.isatty(descriptor)
    # Clear the line first: a progress display may be rewriting it.
    writer = BoundedWriter(descriptor, "log", prefix=_CLEAR_LINE if terminal else b"")
    chosen: Literal["text", "json"] = ("text" if terminal else "json") if style == "auto" else style
    handler = QueueHandler(writer)
    handler.setFormatter(formatter(chosen, colours=terminal and "NO_COLOR" not in os.environ))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return writer


def stop_logging(writer: BoundedWriter) -> None:
    """Remove the handler and write the queued lines, for one second at most."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, QueueHandler) and handler.writer is writer:
            root.removeHandler(handler)
    writer.close()
