"""`tolaria diff` on runs without a daemon."""

from __future__ import annotations

import pytest

from tests.forensics.differences.written import events_of_a_run, with_step, write


@pytest.fixture
def two_runs(tmp_path):
    """A run, and another one whose loss differs at step 17."""
    events = events_of_a_run(tmp_path / "made")
    write(tmp_path / "a" / "journal", events)
    write(tmp_path / "b" / "journal", with_step(events, 17, loss=0.25))
    return tmp_path / "a", tmp_path / "b"


def test_two_runs_are_compared(tolaria, two_runs):
    """The verdict, the step, both events; exit code 1."""
    a, b = two_runs
    said = tolaria("diff", a, b)

    assert said.code == 1
    assert said.out.startswith(
        f"value: after 18 equal records, step 17 differs: the loss is 0.5 in {a} and 0.25 in {b}."
    )
    assert said.out.count("StepCompleted") == 2
    assert "Nothing that the journals record explains it" in said.out


def test_the_answer_as_json(tolaria, two_runs):
    """One object, with the verdict, the place and both events."""
    found = tolaria("diff", *two_runs, "--json").json

    assert (found["verdict"], found["first"]["place"]) == ("value", ["StepCompleted", 0, 17])
    assert [found["events"][side][-1]["loss"] for side in "ab"] == [0.5, 0.25]


def test_a_run_is_the_same_as_itself(tolaria, two_runs):
    """Exit code 0."""
    said = tolaria("diff", two_runs[0], two_runs[0])

    assert (said.code, said.out.partition(":")[0]) == (0, "same")


@pytest.mark.parametrize("places", [("step:12", "now"), ("step:12", "step:12")])
def test_two_moments_of_a_run_are_compared(tolaria, two_runs, places):
    """The step and its event, with exit code 1; between a moment and itself nothing, with exit code 0."""
    said = tolaria("diff", two_runs[0], *places)

    assert said.code == (places[0] != places[1])
    assert ("progress.step: 12 -> 30" in said.out) == (places[0] != places[1])


@pytest.mark.parametrize("words", [(), ("{a}",), ("{a}", "step:20", "step:3"), ("{a}", "nowhere", "now")])
def test_anything_else_is_wrong_usage(tolaria, two_runs, words):
    """Too few arguments, the later point first, no position."""
    said = tolaria("diff", *(word.format(a=two_runs[0]) for word in words))

    assert said.code in (2, 3)
    assert said.out == ""
