"""Journaled values as JSON can carry them."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from tolariad.core.calc.text.plain import (
    escaped_json,
    escaped_json_bytes,
    finite,
    number_state,
    plain,
    plain_event,
    rfc3339,
    safe,
)


@pytest.mark.parametrize(
    ("value", "number", "word"),
    [
        (1.5, 1.5, "finite"),
        (0.0, 0.0, "finite"),
        (math.nan, None, "nan"),
        (math.inf, None, "pos_inf"),
        (-math.inf, None, "neg_inf"),
        (None, None, None),
    ],
)
def test_a_number_has_a_word_beside_it(value, number, word):
    """A number that is not finite is null, and a word says which it was."""
    assert (finite(value), number_state(value)) == (number, word)


def test_an_event_keeps_everything_json_can_say():
    """Bytes as hex, NUL left out, words beside numbers at every depth, the time instead of `wall`."""
    event = {
        "type": "X", "wall": 1_795_244_400_123_456_789, "loss": math.nan, "digest": b"\x01\xff", "text": "a\0b",
        "metrics": {"loss": math.inf, "n": 3}, "list": [math.nan, None, True], "ext": msgspec.msgpack.Ext(5, b"x"),
    }  # fmt: skip
    shown = plain_event(7, event)

    assert list(shown)[:3] == ["seq", "time", "type"]
    assert shown["time"] == "2026-11-21T07:00:00.123456Z"
    assert "wall" not in shown
    assert (shown["loss"], shown["loss_state"]) == (None, "nan")
    assert shown["metrics"] == {"loss": None, "loss_state": "pos_inf", "n": 3}
    assert (shown["digest"], shown["text"], shown["list"]) == ("01ff", "ab", [None, None, True])
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_keys_of_any_kind_become_texts():
    """JSON knows no other."""
    assert plain({1: "a", "b\0": 2}) == {"1": "a", "b": 2}


def test_a_time_beyond_any_calendar_is_its_number():
    """A wild clock is shown, not raised."""
    assert rfc3339(1 << 62) == "2116-02-20T23:53:38.427387Z"
    assert rfc3339(1 << 80).startswith("@")
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"


OBEYED = [*range(32), *range(127, 160), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]


@pytest.mark.parametrize("end", [0x10000, pytest.param(0x110000, marks=pytest.mark.torture)])
def test_json_writes_out_every_character_that_a_terminal_obeys_and_no_other(end):
    """Over Unicode's first plane or all of it, as text and as UTF-8; what is read back is what was written."""
    every = "".join(chr(code) for code in range(end) if not 0xD800 <= code < 0xE000)
    text = escaped_json(json.dumps(every, ensure_ascii=False))
    body = escaped_json_bytes(msgspec.json.encode(every))

    assert json.loads(text) == every
    assert msgspec.json.decode(body) == every
    assert sorted(set(every) - set(text)) == [chr(code) for code in OBEYED]
    assert sorted(set(every) - set(body.decode())) == [chr(code) for code in OBEYED]


def test_half_of_a_surrogate_pair_is_written_out_too():
    """A file's name may hold one, and no encoding can write it."""
    assert escaped_json(json.dumps({"a": "\udcff"}, ensure_ascii=False)) == '{"a": "\\udcff"}'
    assert safe("\udcff\x9b\u061c") == "\\udcff\\x9b\\u061c"
