"""`--second-look`: a test that failed beside others and passes alone is named, and does not fail the session."""

from __future__ import annotations

from functools import partial

import pytest

from tests import inner_session

TESTS = """
import os, pathlib, pytest
HERE = pathlib.Path(__file__).parent
def once(name):
    seen = (HERE / name).exists()
    (HERE / name).touch()
    return seen
def test_good():
    assert not once("good")
@pytest.mark.parametrize("name", ["a b", "c::d"])
def test_loses_a_race(name):
    assert once(name), "lost"
@pytest.fixture
def made():
    assert once("made"), "not made"
def test_of_a_fixture(made):
    pass
def test_bad():
    assert not (HERE / "bad").exists(), "always"
"""


@pytest.fixture
def session(tmp_path):
    """Run these tests in a folder, and return the exit code and what was printed. `bad`: one of them always fails."""
    return partial(inner_session.session, tmp_path, races=TESTS)


def test_failures_that_pass_alone_are_printed_and_pass(session):
    """Only they run again: the good test would fail the second time."""
    code, said = session("-n", "2", "--second-look", "3")

    assert code == 0, said
    assert "2 failed, 2 passed, 1 error" in said
    assert "SECOND LOOK at 3 failed" in said
    assert said.count("lost") >= 2
    assert "3 passed" in said


def test_a_failure_that_comes_again_fails(session, tmp_path):
    """The code is that of the second session."""
    (tmp_path / "bad").touch()
    for name in ("a b", "c::d", "made"):
        (tmp_path / name).touch()
    code, said = session("-n", "2", "--second-look", "3")

    assert code == 1, said
    assert "SECOND LOOK at 1 failed" in said


@pytest.mark.parametrize("options", [[], ["--second-look", "2"]])
def test_without_the_option_or_with_more_failures_one_look_is_all(session, options):
    """Three failed."""
    code, said = session("-n", "2", *options)

    assert code == 1, said
    assert "SECOND LOOK" not in said
