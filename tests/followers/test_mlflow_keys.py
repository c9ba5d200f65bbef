"""Every name has a key that MLflow takes, and no two names share one."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tolariad.followers.mlflow_keys import key_of

NAMES = some.one_of(
    some.text(min_size=1),
    some.text("a/.", min_size=1),
    some.text("ab/. :?", min_size=200, max_size=300),
)


def is_taken_by_mlflow(key: str) -> bool:
    """Decide as mlflow.utils.validation does, on each of its systems."""
    norm = posixpath.normpath(key)
    is_path = norm == key and norm != "." and not norm.startswith(("..", "/"))
    return bool(re.fullmatch(r"[/\w.\- ]*", key)) and is_path and 0 < len(key) <= 250


@given(NAMES)
def test_every_name_has_a_key_that_mlflow_takes(name):
    """A name that it takes is its own key."""
    assert is_taken_by_mlflow(key_of(name))
    if is_taken_by_mlflow(name):
        assert key_of(name) == name


@given(some.lists(NAMES, unique=True, max_size=20))
def test_no_two_names_share_a_key(names):
    """Whatever is replaced or cut off."""
    assert len(set(map(key_of, names))) == len(names)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("val/accuracy", "val/accuracy"),
        ("größe 1.5", "größe 1.5"),
        ("top:5", "top_5-"),
        ("top?5", "top_5-"),
        ("a//b", "a/_/b-"),
        ("/a/", "_/a/_-"),
        ("../up", "_/up-"),
        ("..up", "_.up-"),
        ("\x1b[31m\n", "__31m_-"),
    ],
)
def test_a_name_can_be_recognised_in_its_key(name, key):
    """Only what is refused is replaced."""
    found = key_of(name)
    assert found == key if not key.endswith("-") else found[:-8] == key
