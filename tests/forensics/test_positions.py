"""Positions as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tolariad.forensics.positions import BadPosition, JournalPosition, PositionKind, parse_position

NOW = datetime(2026, 11, 21, 7, 30, 15, 250_000, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("seq:9001", JournalPosition(PositionKind.SEQ, 9001)),
        ("9001", JournalPosition(PositionKind.SEQ, 9001)),
        ("step:41207", JournalPosition(PositionKind.STEP, 41207)),
        (" epoch:12 ", JournalPosition(PositionKind.EPOCH, 12)),
    ],
)
def test_counted_places_are_numbers(text, place):
    """A bare number is a sequence number."""
    assert parse_position(text, NOW) == place


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("today", NOW.replace(hour=0, minute=0, second=0, microsecond=0)),
        ("yesterday", NOW.replace(day=20, hour=0, minute=0, second=0, microsecond=0)),
        ("-2h", NOW - timedelta(hours=2)),
        ("-1h 30min", NOW - timedelta(minutes=90)),
        ("2 hours ago", NOW - timedelta(hours=2)),
        ("1 day 2h ago", NOW - timedelta(hours=26)),
        ("+5min", NOW + timedelta(minutes=5)),
        ("07:00", NOW.replace(hour=7, minute=0, second=0, microsecond=0)),
        ("07:00:30", NOW.replace(hour=7, minute=0, second=30, microsecond=0)),
        ("2026-11-20", NOW.replace(day=20, hour=0, minute=0, second=0, microsecond=0)),
        ("2026-11-20 07", NOW.replace(day=20, hour=7, minute=0, second=0, microsecond=0)),
        ("2026-11-20 07:00", NOW.replace(day=20, hour=7, minute=0, second=0, microsecond=0)),
        ("2026-11-20T07:00:01.5", NOW.replace(day=20, hour=7, minute=0, second=1, microsecond=500_000)),
        ("2026-11-20T07:00:01.000001Z", datetime(2026, 11, 20, 7, 0, 1, 1, tzinfo=UTC)),
        ("2026-11-20T07:00:00+01:00", datetime(2026, 11, 20, 6, 0, tzinfo=UTC)),
        ("@1795244400", datetime.fromtimestamp(1795244400, UTC)),
        ("@1795244400.5", datetime.fromtimestamp(1795244400.5, UTC)),
    ],
)
def test_times_are_read_in_local_time(text, moment):
    """Exact to the microsecond: a time that JSON prints is accepted."""
    assert (
        parse_position(text, NOW).value
        == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    )


@pytest.mark.parametrize(
    "text", ["", "soon", "seq:", "seq:x", "step:-1", "25:00", "2026-13-01", "-2 fortnights", "-", "ago"]
)
def test_what_is_no_place_is_refused_with_the_forms(text):
    """The error lists the accepted forms."""
    with pytest.raises(BadPosition, match="step:N"):
        parse_position(text, NOW)
