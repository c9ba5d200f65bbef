"""The daemon's log. Every module logs through `logging`; this one decides the format and the destination.

Promises: a logging call never waits for stderr. On a terminal a record is a line of text, otherwise one JSON object.
Every record says of which run it is and at which step (`run`, `step`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import structlog

from tolariad.core.plain import escaped_json_bytes, safe_lines
from tolariad.telemetry.writer import BoundedWriter

LogFormat = Literal["auto", "text", "json"]
Bound = Callable[[], dict[str, object]]
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


def formatter(style: Literal["text", "json"], *, bound: Bound, colours: bool = False) -> logging.Formatter:
    """Return the formatter: structlog formats every record, also those of other libraries.

    `bound` returns the fields that every record gets; a field that the record has of its own stays.
    """

    def add_bound(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**bound(), **event}

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
        add_bound,
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


class DaemonLog:
    """The daemon's log on one descriptor. Level and format may change while it is open; so may the run and its step."""

    def __init__(self, level: str, style: LogFormat, descriptor: int = 2) -> None:
        """Send every record of `level` and above to `descriptor`, instead of where records went until now."""
        self._terminal = os.isatty(descriptor)
        # Clear the line first: a progress display may be rewriting it.
        self._writer = BoundedWriter(descriptor, "log", prefix=_CLEAR_LINE if self._terminal else b"")
        self._handler = QueueHandler(self._writer)
        self._bound: Bound = dict
        self.configure(level, style)
        root = logging.getLogger()
        for old in root.handlers[:]:
            root.removeHandler(old)
        root.addHandler(self._handler)

    def configure(self, level: str, style: LogFormat) -> None:
        """Use this level and this format from now on."""
        chosen: Literal["text", "json"] = ("text" if self._terminal else "json") if style == "auto" else style
        colours = self._terminal and "NO_COLOR" not in os.environ
        self._handler.setFormatter(formatter(chosen, colours=colours, bound=self._fields))
        logging.getLogger().setLevel(level.upper())

    def bind(self, bound: Bound) -> None:
        """Add the fields that `bound` returns to every record. It is called for each, in the thread that logs."""
        self._bound = bound

    def _fields(self) -> dict[str, object]:
        return self._bound()

    def write(self, piece: bytes) -> None:
        """Write bytes between two records; never waits."""
        self._writer.write(piece)

    @property
    def dropped_count(self) -> int:
        """How many pieces could not be written."""
        return self._writer.dropped_count

    def close(self, timeout_s: float = 1.0) -> None:
        """Take no more records and write the queued ones, for `timeout_s` at most."""
        logging.getLogger().removeHandler(self._handler)
        self._writer.close(timeout_s)
