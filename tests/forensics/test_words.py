"""Events as text without control characters for a terminal."""

from __future__ import annotations

import json

import pytest

from tolariad.forensics.words import block, by_whom, in_words, one_line, safe, safe_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 中 😀", "plain ü 中 😀"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edcb", "abc\\u202edcb"),
        ("\ud800", "\\ud800"),
        ("line\u2028end", "line\\u2028end"),
        ("no-break\u00a0space", "no-break\u00a0space"),
    ],
)
def test_control_characters_are_written_out(text, shown):
    """Escape sequences, C1 controls, bidirectional marks and lone surrogates are escaped."""
    assert safe(text) == shown


def test_lines_stay_lines_where_they_are_meant():
    """A traceback keeps its lines and loses its escape sequences."""
    assert safe_lines("a\n\tb\x1b[31m") == "a\n\tb\\x1b[31m"


def test_an_event_is_one_line_with_its_actor_at_the_end():
    """The stamp is left out; long values are cut; numbers are short."""
    fields = {
        "type": "X", "wall": 1, "cause": 2, "loss": 0.123456789, "text": "a b", "blob": b"\x01\xff", "none": None,
        "many": list(range(9)), "map": {"k": 1.5}, "long": "x" * 500,
        "actor": {"uid": 1000, "pid": 1, "program": "tolaria", "reason": "lunch\n"},
    }  # fmt: skip
    line = one_line(fields)

    assert line.startswith('loss=0.123457 text="a b" blob=01ff none=- many=[9] map={k=1.5} long=xxx')
    assert line.endswith("… (by tolaria, uid 1000: lunch\\n)")
    assert "\n" not in line


def test_a_block_has_every_field_whole():
    """Nothing is cut; texts of several lines are below their name."""
    many = [{"id": "c1", "step": 1}, {"id": "c2", "step": 2, "why": "a\x1bb" + "y" * 500}]
    shown = block({"long": "x" * 500, "trace": "a\nb\n", "inner": {"k": "v"}, "many": many}, indent="")

    assert "x" * 500 in shown
    assert "trace:\n    a\n    b" in shown
    assert "inner:\n    k: v" in shown
    assert "many:\n    id=c1 step=1\n    id=c2 step=2 why=a\\x1bb" + "y" * 500 in shown


def test_a_program_of_ours_has_no_user():
    """A uid of -1 is not shown."""
    assert by_whom({"program": "signal", "reason": "SIGTERM"}) == "(by signal: SIGTERM)"


def test_an_event_is_a_sentence_and_one_of_another_version_its_fields():
    """A type that this version does not know, or a field that it cannot read, is shown as it is."""
    pause = {"type": "PauseRequested", "wall": 1, "actor": {"uid": 1000, "program": "tolaria", "reason": "a\x1bb"}}

    assert in_words(pause) == "A pause was ordered by uid 1000: a\\x1bb."
    assert in_words({"type": "Newer", "wall": 1, "level": 3}) == "level=3"
    assert in_words({"type": "EpochStarted", "epoch": "three"}) == "epoch=three"


def test_a_block_tells_the_length_of_a_table_and_not_its_characters():
    """The table of a rate function has thousands, at any depth of an event."""
    table = {"source": "a.py:f", "hash": "ab", "steps": 3, "packed": "x" * 5000}
    shown = block({"function": table, "groups": [{"name": "g", "schedule": {"function": table}}]}, indent="")

    assert shown.count("5000 characters") == 2
    assert "xx" not in shown
    assert "source: a.py:f" in shown


def test_a_block_tells_the_length_of_an_object_for_a_program():
    """A plan or a removal is JSON of thousands of characters. A short one, and a text with a brace, are shown."""
    removal = json.dumps({"removed": {"conv": list(range(500))}})
    shown = block({"removal": removal, "short": '{"a": 1}', "why": "{" + "y" * 200})

    assert f"removal: a JSON object of {len(removal)} characters" in shown
    assert 'short: {"a": 1}' in shown
    assert "y" * 200 in shown
    assert max(map(len, block({"removal": removal}).splitlines())) <= 80
