"""The page of the everyday scripts counts what it says, for every script and every trainer."""

from __future__ import annotations

import json

import pytest

from tests.everyday.page import _NO_PORT, Changed, changed, everyday_page, table
from tests.everyday.scripts import DENSE, KINDS, OTHERS, PORTED, RECORD


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a b c", "a b c", (0, 0)),
        ("a b c", "a x b c", (1, 0)),
        ("a b c", "a c", (0, 1)),
        ("a b c", "a x y c", (2, 1)),
        ("a b c", "c a b", (1, 1)),
    ],
)
def test_lines_that_are_new_and_lines_that_went_are_counted(before, after, expected):
    """A line that moved is both."""
    assert changed(before.split(), after.split()) == Changed(*expected)


def test_every_script_has_every_form_or_a_reason():
    """Ten scripts; where another trainer has no port the page says why. Eight more have both forms of this project."""
    found = table()
    assert (len(found), len(PORTED), len(DENSE)) == (len(KINDS), 10, 8)
    missing = {(name, kind) for kind, forms in found.items() for name, one in forms.items() if one is None}
    assert missing == set(_NO_PORT) | {(name, kind) for name in OTHERS for kind in DENSE}
    assert all(one.added and one.removed for forms in found.values() for one in forms.values() if one is not None)


def test_what_is_said_of_others_was_measured_on_every_port():
    """With the versions of which it is true."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    ports = {(name, kind) for kind in PORTED for name in OTHERS} - set(_NO_PORT)
    assert {(name, kind) for name in OTHERS for kind in record["survived"][name]} == ports
    assert set(record["versions"]) == set(OTHERS)
    assert all(version in everyday_page() for version in record["versions"].values())
