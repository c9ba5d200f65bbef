"""Numbers, sizes and durations as text; colours only if they are wanted."""

from __future__ import annotations

import io

import pytest

from tolariad.cli.output import colours_wanted, counted, duration, note, number, painted, put, size, table
from tolariad.cli.wrapping import width


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.85, "850 ms"),
        (12.9, "12 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
        (60, "1 min"),
    ],
)
def test_durations_have_two_units_at_most(seconds, words):
    """Durations are rounded down."""
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (100_000_000, "100.0 MB"), (10**13, "10.0 TB")]
)
def test_sizes_are_decimal(count, words):
    """Sizes use decimal units, as `ls -h --si` does."""
    assert size(count) == words


def test_numbers_are_short_and_absent_ones_say_why():
    """Four digits; a dash for None; a word for a number that is not finite."""
    assert [number(0.123456), number(7), number(None), number(None, "nan"), number(None, "finite")] == [
        "0.1235", "7", "-", "nan", "-",
    ]  # fmt: skip
    assert (counted(1, "event"), counted(2, "event")) == ("1 event", "2 events")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "stream", "wanted"),
    [
        ({}, Terminal(), True),
        ({}, io.StringIO(), False),
        ({"NO_COLOR": "1"}, Terminal(), False),
        ({"TERM": "dumb"}, Terminal(), False),
        ({"FORCE_COLOR": "1"}, io.StringIO(), True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, Terminal(), False),
    ],
)
def test_colours_follow_the_conventions(monkeypatch, environment, stream, wanted):
    """NO_COLOR wins, then FORCE_COLOR, then what the stream is."""
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert colours_wanted(stream) is wanted
    assert ("\x1b" in painted("x", "red", stream)) is wanted


def test_what_is_put_keeps_its_colours_and_nothing_else_that_a_terminal_obeys(capsys, monkeypatch):
    """A second barrier, after each command has escaped text from outside."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    put(painted("a", "red") + "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\r\tb\nc")
    note("\u2066\x1b[5m")
    said = capsys.readouterr()

    assert said.out == "\x1b[31ma\x1b[0m\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\u202e\\r\tb\nc\n"
    assert said.err == "\\u2066\\x1b[5m\n"


@pytest.mark.parametrize("name", ["ascii", "日本語", "한글 ab", "e\u0301te\u0301", "🙂🙂", "\u200bzero"])
def test_the_columns_of_a_table_stand_under_each_other(name):
    """Counted as a terminal draws them: a Chinese character takes two columns, a combining accent none."""
    rows = [("NAME", "STEP"), (name, "7"), ("a long name", "123456")]
    left, right = list(table(rows)), list(table(rows, numbers=(0, 1)))

    assert {width(line[: line.rindex(row[1])]) for line, row in zip(left, rows, strict=True)} == {13}
    assert {width(line) for line in right} == {19}
