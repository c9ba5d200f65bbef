"""A traceback that was printed once is recognised, and only its last lines are printed again."""

from __future__ import annotations

import traceback

import pytest

from tolariad.core.calc.text.tracebacks import last_traceback, mark_of, shortened


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception:
        return traceback.format_exc()


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), ValueError("two\nlines\n\n"), ValueError("")],
    ids=["line", "lines", "empty"],
)
@pytest.mark.parametrize("cause", [None, KeyError("before")], ids=["alone", "with_cause"])
def test_the_same_traceback_is_shortened_to_its_exception(error, cause):
    """What was printed after it or before it changes nothing; the short form is recognised as no new one."""
    text = raised(error, cause)
    mark = mark_of("a line before\n" + text)
    short = shortened(text, mark)

    assert mark
    assert "File " not in short
    assert type(error).__name__ in short
    assert last_traceback(short)
    assert mark_of(text + short) == ""


def test_another_traceback_is_whole():
    """Another text, another line, none before: nothing is cut."""
    one, other = raised(ValueError("no")), raised(ValueError("yes"))

    assert shortened(one, mark_of(other)) == shortened(one, "") == one
    group = raised(ExceptionGroup("both", [ValueError("a")]))
    assert shortened(group, mark_of(group)) == group
    assert shortened("no traceback", mark_of("no traceback")) == "no traceback"
