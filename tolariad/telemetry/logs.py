"""The daemon's log. Every module logs through `logging`; this one decides the format and the destination.

Promises: a logging call never waits. People get warnings and errors as plain lines, on a terminal and on a pipe; with
`verbose`, or `logging.level: debug`, every record with its time, its logger and its fields. Under systemd a record goes
to its journal, with fields; under another service manager, or if asked for, it is one JSON object. It says of which
run it is and at which step (`run`, `step`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tolariad.core.calc.text.plain import escaped_json_bytes, safe_lines
from tolariad.telemetry.journald import JournalSender, is_journal, message_id
from tolariad.telemetry.writer import BoundedWriter


def _without_rich(name: str) -> ModuleType:
    """Import a module as if rich were not installed: structlog loads it for nothing, 0.16 s of every start."""
    known: dict[str, Any] = sys.modules
    hidden = known.pop("rich", None)
    known["rich"] = None
    try:
        return import_module(name)
    finally:
        del known["rich"]
        if hidden is not None:
            known["rich"] = hidden


if TYPE_CHECKING:
    import structlog
else:
    structlog = _without_rich("structlog")

LogFormat = Literal["auto", "text", "json"]
Bound = Callable[[], dict[str, object]]
# A record with this field says what an event says too, whose sentence the console shows, or the summary of the run.
_TOLD_BY: Final = "told_by"
_CLEAR_LINE: Final = b"\r\x1b[K"
_TRACEBACKS: Final = logging.Formatter()


class _PlainFormatter(logging.Formatter):
    """Formats a record for somebody who watches a run: level and message."""

    def __init__(self, *, breaks_lines: bool) -> None:
        """`breaks_lines`: to fit a terminal. A file is searched line by line."""
        super().__init__()
        self._breaks_lines = breaks_lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and its traceback if it has one."""
        text = f"{record.levelname.lower()}: {safe_lines(super().format(record))}"
        # A traceback keeps its lines.
        return text if record.exc_info or not self._breaks_lines else "\n".join(map(_fitted, text.split("\n")))


def _fitted(text: str) -> str:
    """Break a line at spaces so that it fits the terminal."""
    from shutil import get_terminal_size
    from textwrap import fill

    columns = get_terminal_size().columns
    return fill(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _to_json(event: object, **_: object) -> str:
    return escaped_json_bytes(msgspec.json.encode(event, enc_hook=repr)).decode()


def _sender(descriptor: int) -> JournalSender | None:
    """Return the way to the journal if the descriptor leads there."""
    if not is_journal(descriptor, os.environ):
        return None
    try:
        return JournalSender()
    except OSError:
        return None  # lines reach it too


# syslog's numbers, which journald uses: debug 7, info 6, warning 4, error 3, critical 2.
def _priority(level: int) -> int:
    return next(number for least, number in ((50, 2), (40, 3), (30, 4), (20, 6), (0, 7)) if level >= least)


class DaemonLog(logging.Handler):
    """The daemon's log on one descriptor. Level and format may change while it is open; so may the run and its step.

    A record is formatted in the calling thread; its bytes are queued in a writer, whose thread does the waiting.
    """

    def __init__(self, level: str, style: LogFormat, descriptor: int = 2, *, verbose: bool = False) -> None:
        """Send every record of `level` and above to `descriptor`, instead of where records went until now."""
        super().__init__()
        self._verbose = verbose
        self._terminal = os.isatty(descriptor)
        self._journal = _sender(descriptor)
        # A service manager that has a journal of another kind.
        self._is_service = not self._terminal and "NOTIFY_SOCKET" in os.environ
        # Clear the line first: a progress display may be rewriting it.
        self.writer: Final = BoundedWriter(descriptor, "log", prefix=_CLEAR_LINE if self._terminal else b"")
        self._bound: Bound = dict
        self.configure(level, style)
        logging.getLogger().handlers[:] = [self]

    def configure(self, level: str, style: LogFormat) -> None:
        """Use this level and this format from now on, also for the records of other libraries."""
        self._to_journal = style == "auto" and self._journal is not None
        is_text = style == "text" or (style == "auto" and not self._is_service)
        is_for_people = self._terminal or style == "auto"
        self._is_plain = is_text and is_for_people and not self._verbose and level.lower() != "debug"
        logging.getLogger().setLevel(level.upper())
        if self._is_plain:
            self.setFormatter(_PlainFormatter(breaks_lines=self._terminal))
            return
        chain: list[structlog.typing.Processor] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            self._add_bound,
        ]
        render: structlog.typing.Processor
        if is_text:
            # For people: local time.
            chain.append(structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S.%f", utc=False))
            colours = self._terminal and "NO_COLOR" not in os.environ
            render = structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)
        else:
            # For programs: RFC 3339 with microseconds.
            chain.append(structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True))
            chain.append(structlog.processors.format_exc_info)
            render = structlog.processors.JSONRenderer(serializer=_to_json)
        last = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
        self.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=chain, processors=last))

    def bind(self, bound: Bound) -> None:
        """Add the fields that `bound` returns to every record, unless it has one of that name.

        `bound` is called for each record, in the thread that logs.
        """
        self._bound = bound

    def _add_bound(self, _: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        # A message may hold an error's text, and that anything at all: a terminal must not obey it.
        return {**self._bound(), **event, "event": safe_lines(str(event["event"]))}

    @property
    def tells_events(self) -> bool:
        """Whether what the console says of events is to be logged too: the console is not for programs."""
        return self._to_journal or not self._is_plain

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line. If formatting fails, logging's own error handling reports it."""
        if self._to_journal and self._journal is not None:
            try:
                self._journal.send(self._fields(record))
            except Exception:  # noqa: BLE001 - as below
                self.handleError(record)
            return
        if self._is_plain and (record.levelno < logging.WARNING or hasattr(record, _TOLD_BY)):
            return
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001 - a wrong format string must not raise in the code that logs
            self.handleError(record)
            return
        self.write(line.encode("utf-8", "backslashreplace"))

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        """Return the record as fields of a journal."""
        bound = self._bound()
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{_TRACEBACKS.formatException(record.exc_info)}"
        fields = {
            "MESSAGE": safe_lines(text),
            "PRIORITY": str(_priority(record.levelno)),
            "SYSLOG_IDENTIFIER": f"tolariad@{bound['run']}" if "run" in bound else "tolariad",
            "TOLARIA_LOGGER": record.name,
            **{f"TOLARIA_{name.upper()}": str(value) for name, value in bound.items()},
        }
        seq, kind = getattr(record, "seq", None), getattr(record, _TOLD_BY, None)
        if seq is not None and kind is not None:
            fields |= {"TOLARIA_SEQ": str(seq), "TOLARIA_EVENT": str(kind), "MESSAGE_ID": message_id(str(kind))}
        return fields

    def write(self, piece: bytes) -> None:
        """Write bytes between two records; never waits."""
        self.writer.write(piece)

    def close(self, timeout_s: float = 1.0) -> None:
        """Take no more records and write the queued ones, for `timeout_s` at most."""
        logging.getLogger().removeHandler(self)
        self.writer.close(timeout_s)
        if self._journal is not None:
            self._journal.close()
        super().close()
