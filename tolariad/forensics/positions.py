"""Positions in a run's history as people write them: a subset of systemd.time, and `seq:` `step:` `epoch:`.

Promises: a text becomes one JournalPosition, or raises BadPosition, whose message lists the accepted forms. Times are
read as local time. The current time is an argument.
"""

from __future__ import annotations

import enum
import re
from datetime import datetime, time, timedelta
from typing import Final

import msgspec

FORMS: Final = (
    "2026-11-21 07:00[:30], 07:00, now, today, yesterday, -2h, '2 hours ago', @UNIX-SECONDS, "
    "seq:N, step:N[@BRANCH], epoch:N"
)


class PositionKind(enum.Enum):
    """The unit of a position's value."""

    SEQ = "seq"
    STEP = "step"
    EPOCH = "epoch"
    TIME = "time_ns"


class JournalPosition(msgspec.Struct, frozen=True):
    """A sequence number, a step, an epoch, or nanoseconds since 1970.

    `branch` None: the step of that number that is part of the run as it stands now, not of an abandoned branch.
    """

    kind: PositionKind
    value: int
    branch: int | None = None


class BadPosition(ValueError):
    """The text is not a position."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a position in the run; write one of: {FORMS}")


_COUNTED: Final = re.compile(r"(?:(seq|step|epoch):)?(\d{1,18})|step:(\d{1,18})@(\d{1,18})")
_UNIX: Final = re.compile(r"@(\d{1,11}(?:\.\d{1,9})?)")
_SPAN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_UNITS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
    "ms": 0.001,
}


def parse_position(text: str, now: datetime) -> JournalPosition:
    """Parse a position. Times are read in the time zone of `now`. Raises BadPosition."""
    text = text.strip()
    if counted := re.fullmatch(_COUNTED, text):
        kind, value, step, branch = counted.groups()
        if branch is not None:
            return JournalPosition(PositionKind.STEP, int(step), int(branch))
        return JournalPosition(PositionKind[(kind or "seq").upper()], int(value))
    try:
        return JournalPosition(PositionKind.TIME, _nanoseconds(_moment(text, now)))
    except (ValueError, OverflowError, OSError) as error:
        raise BadPosition(text) from error


def _nanoseconds(moment: datetime) -> int:
    # Integer arithmetic: a float of seconds since 1970 cannot hold microseconds exactly.
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1_000_000_000 + moment.microsecond * 1000


def _moment(text: str, now: datetime) -> datetime:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if text in words:
        return words[text]
    if unix := re.fullmatch(_UNIX, text):
        return datetime.fromtimestamp(float(unix[1]), now.tzinfo)
    if text.startswith("+"):
        return now + _span(text[1:])
    if text.startswith("-"):
        return now - _span(text[1:])
    if text.endswith(" ago"):
        return now - _span(text.removesuffix(" ago"))
    return _clock(text, now)


def _span(text: str) -> timedelta:
    """Parse `1h 30min`. Raises ValueError."""
    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text) or not all(unit in _UNITS for _, unit in parts):
        raise ValueError(text)
    return timedelta(seconds=sum(float(amount) * _UNITS[unit] for amount, unit in parts))


def _clock(text: str, now: datetime) -> datetime:
    """Parse a date, a time of day (today), or both. A trailing Z means UTC. Raises ValueError."""
    try:
        moment = datetime.combine(now, time.fromisoformat(text))
    except ValueError:
        moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        return moment
    # Use the UTC offset of that day, not of today: daylight saving time may differ.
    is_local = now.utcoffset() == now.replace(tzinfo=None).astimezone().utcoffset()
    return moment.astimezone() if is_local else moment.replace(tzinfo=now.tzinfo)
