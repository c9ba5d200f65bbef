"""Positions in a run's history as people write them: a subset of systemd.time, and `seq:` `step:` `epoch:`.

Promises: a text becomes one JournalPosition, or raises BadPosition, whose message lists the accepted forms. Times are
read as local time. The current time is an argument.
"""

from __future__ import annotations

import enum
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

FORMS: Final = (
    "2026-11-21 07:00[:30], 07:00, now, today, yesterday, -2h, '2 hours ago', @UNIX-SECONDS, "
    "seq:N, step:N[@BRANCH], epoch:N"
)


class PositionKind(enum.Enum):
    """What the value of a position counts."""

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


_COUNTED: Final = re.compile(r"(seq|step|epoch):(\d{1,18})(?:@(\d{1,18}))?")
_PLAIN: Final = re.compile(r"\d{1,18}")
_UNIX: Final = re.compile(r"@(\d{1,11}(?:\.\d{1,9})?)")
_CLOCK: Final = re.compile(
    r"(?:(\d{4})-(\d\d)-(\d\d)(?:[ T](?=\d))?)?(?:(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?(Z)?"
)
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
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
        kind = PositionKind[counted[1].upper()]
        if counted[3] and kind is not PositionKind.STEP:
            raise BadPosition(text)
        return JournalPosition(kind, int(counted[2]), int(counted[3]) if counted[3] else None)
    if re.fullmatch(_PLAIN, text):
        return JournalPosition(PositionKind.SEQ, int(text))
    try:
        moment = _moment(text, now)
        return JournalPosition(PositionKind.TIME, _nanoseconds(moment))
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
    if text.startswith(("-", "+")):
        span = _span(text[1:])
        return now - span if text[0] == "-" else now + span
    if text.endswith(" ago"):
        return now - _span(text.removesuffix(" ago"))
    return _clock(text, now)


def _span(text: str) -> timedelta:
    seconds = 0.0
    end = 0
    for part in re.finditer(_SPAN, text):
        if text[end : part.start()].strip() or part[2] not in _UNITS:
            raise BadPosition(text)
        seconds += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    if not end or text[end:].strip():
        raise BadPosition(text)
    return timedelta(seconds=seconds)


def _clock(text: str, now: datetime) -> datetime:
    """Parse a date, a time of day (today), or both. A trailing Z means UTC."""
    found = re.fullmatch(_CLOCK, text)
    if not text or found is None:
        return datetime.fromisoformat(text).astimezone(now.tzinfo)
    year, month, day, hour, minute, second, fraction, _ = found.groups()
    moment = now.replace(
        hour=int(hour or 0),
        minute=int(minute or 0),
        second=int(second or 0),
        microsecond=int((fraction or "").ljust(6, "0")),
    )
    if year:
        moment = moment.replace(year=int(year), month=int(month), day=int(day))
    if text.endswith("Z"):
        return moment.replace(tzinfo=UTC)
    # Use the UTC offset of that day, not of today: daylight saving time may differ.
    return moment.replace(tzinfo=None).astimezone() if now.tzinfo is None or _is_local(now) else moment


def _is_local(now: datetime) -> bool:
    return now.utcoffset() == now.replace(tzinfo=None).astimezone().utcoffset()
