"""Curves as text: they fit, they can be read without Unicode, and odd values do no harm."""

from __future__ import annotations

import io
import math

import pytest

from tolariad.cli.plotting import Curve, drawn, for_stream

RATES = [10.0 ** (n / 10 - 7) for n in range(81)]


EACH = [f"{10.0**n:.4g}" if -4 < n else f"1e{n}" for n in range(-7, 2)]


@pytest.mark.parametrize(("columns", "ticks"), [(40, ["1e-7", "1e-4", "0.1"]), (80, EACH), (120, EACH)])
def test_a_drawing_fits_its_columns(columns, ticks):
    """No line is longer, whatever the values; decades are ticks, and none is lost."""
    text = drawn([Curve("loss", RATES, [1e9 * math.sin(n) for n in range(81)])], columns=columns, rows=12, log_x=True)
    lines = text.splitlines()

    assert (len(lines), max(map(len, lines)) <= columns) == (12, True)
    assert lines[-1].split() == ticks
    assert "\x1b" not in text


def test_a_falling_curve_falls():
    """From the first column at the top to the last at the bottom."""
    lines = drawn([Curve("loss", [0, 1, 2], [3.0, 2.0, 1.0])], columns=60, rows=12).splitlines()
    inner = [line[line.index("┤" if "┤" in line else "│") + 1 : -1] for line in lines[1:-2]]
    starts = [len(line) - len(line.lstrip()) for line in inner if line.strip()]

    assert starts == sorted(starts)
    assert starts[0] < 3 < 40 < starts[-1]


def test_values_that_are_not_finite_are_left_out():
    """Without any other there is nothing to draw. A single point and a constant are drawn."""
    text = drawn([Curve("a", [1, 2, 3], [1.0, math.nan, 2.0]), Curve("b", [1, 2], [math.inf, 1.5])])

    assert ("a" in text, "b" in text) == (True, True)
    assert drawn([Curve("a", [1], [2.0])])
    assert drawn([Curve("a", RATES, [2.0] * 81)], log_x=True, marks=[1e-3])
    with pytest.raises(ValueError, match="no finite point"):
        drawn([Curve("a", [1], [math.nan])])


def test_a_stream_without_unicode_gets_ascii():
    """In the same shape."""
    text = drawn([Curve("loss", RATES, RATES)], log_x=True)
    plain = for_stream(text, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))

    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in text.splitlines()]
    assert "*" in plain
    assert for_stream(text, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == text
