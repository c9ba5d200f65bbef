"""Names are for ever: what a released version could write, every later one can read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.house.events_page import events_page, record
from tests.house.pages import admits
from tolariad.core.messages.vocabulary import EVENT_TYPES, Unknown, decode_event
from tolariad.core.rules.table.reactions import TABLE

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "events-0.1.json"


def test_no_event_or_field_of_a_released_version_disappears_or_changes_its_type():
    """`events-0.1.json` only grows: fields, and kinds of a field, may be added to the code, never taken from it."""
    recorded: dict[str, dict[str, str]] = msgspec.json.decode(RECORDED.read_bytes())
    now = record()

    lost = {
        f"{name}.{field}": (kind, now.get(name, {}).get(field))
        for name, fields in recorded.items()
        for field, kind in fields.items()
        if not admits(now.get(name, {}).get(field, ""), kind)
    }
    assert lost == {}
    assert set(recorded) <= set(now)


def test_every_event_and_field_of_today_is_recorded():
    """From the day on which it exists; `make docs` adds it to the record."""
    recorded: dict[str, dict[str, str]] = msgspec.json.decode(RECORDED.read_bytes())
    missing = [
        f"{name}.{field}"
        for name, fields in record().items()
        for field in (*fields, "")
        if name not in recorded or (field and field not in recorded[name])
    ]

    assert missing == []
    assert set(EVENT_TYPES) <= set(recorded)


def test_every_field_that_is_added_has_a_default():
    """An old event lacks it; decoding must not fail for that."""
    recorded: dict[str, dict[str, str]] = msgspec.json.decode(RECORDED.read_bytes())
    added_without_default = [
        f"{name}.{field.encode_name}"
        for name, kind in EVENT_TYPES.items()
        for field in msgspec.structs.fields(kind)
        if name in recorded and field.required and field.encode_name not in recorded[name]
    ]

    assert added_without_default == []


def test_the_page_of_events_is_the_one_that_the_types_give():
    """`make docs` was run."""
    assert (ROOT / "docs" / "events.md").read_text() == events_page()


def test_the_page_has_every_event():
    """A concern that is left out of it would go unseen: the page is only ever compared with itself."""
    page = events_page()

    assert [name for name in EVENT_TYPES if f"### {name}" not in page] == []


def test_every_event_says_what_it_means_and_what_it_follows_from():
    """A name alone is not documentation. Telemetry writes the one event that no row of the table records."""
    recorded = {kind for row in TABLE for kind in row.makes}

    assert [name for name, kind in EVENT_TYPES.items() if not kind.__doc__] == []
    assert [name for name, kind in EVENT_TYPES.items() if kind not in recorded] == ["TelemetryDropped"]


def test_an_event_of_a_newer_version_is_named_and_not_misread():
    """First `type` and `skippable`, then that type's own decoder."""
    newer = msgspec.msgpack.encode({"type": "SeedGerminated", "skippable": True, "slot": 3})

    assert decode_event(newer) == Unknown("SeedGerminated", skippable=True)


def test_a_field_of_a_newer_version_does_not_hinder_an_older_reader():
    """Fields are only ever added."""
    raw = msgspec.msgpack.encode({"type": "NoteAdded", "text": "x", "mood": "good"})
    event = decode_event(raw)

    assert event == EVENT_TYPES["NoteAdded"](text="x")


def test_a_known_event_with_an_impossible_field_is_an_error_with_a_path():
    """Never a silent default."""
    raw = msgspec.msgpack.encode({"type": "NoteAdded", "text": 7})

    with pytest.raises(msgspec.ValidationError, match=r"\$\.text"):
        decode_event(raw)
