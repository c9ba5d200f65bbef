"""The page's questions are thirteen, each with a command that the program accepts, and a check that can fail."""

from __future__ import annotations

import pytest

from tests.cli.test_documented_commands import unknown
from tests.examples.questions import missing, questions


def test_the_thirteen_questions_have_commands_that_exist():
    """Each has one command at least, and some line of the answer."""
    found = questions()

    assert {one.number for one in found} == set(range(1, 14))
    for one in found:
        assert one.words[0] == "tolaria"
        assert unknown(" ".join(one.words)) == ""
        assert one.shown, one


@pytest.mark.parametrize(
    ("shown", "absent"),
    [
        (("because … LrSet …",), []),
        (("because … LrSet …", "this Nov 28 OrderActed"), []),
        (("this Nov 28 OrderActed", "because … LrSet …"), ["because … LrSet …"]),
        (("because … LrSet",), ["because … LrSet"]),
        (("this … order",), ["this … order"]),
    ],
)
def test_an_answer_without_a_shown_line_is_found(shown, absent):
    """In the page's order; the omission mark stands for anything."""
    assert missing(shown, "  because  Nov 28   7 LrSet  by uid 0\n  this     Nov 28 OrderActed\n") == absent
