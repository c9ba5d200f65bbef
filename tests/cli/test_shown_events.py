"""`tolaria events`: which rows a person sees who does not ask for all."""

from __future__ import annotations

from tolariad.forensics.bookkeeping import BOOKKEEPING


def test_steps_and_bookkeeping_are_shown_when_they_are_asked_for(tolaria, dead_run):
    """Without -a a person sees what happened; -t, -g and JSON mean what they say, and -n counts the rows shown."""

    def kinds(*arguments):
        return [line.split()[4] for line in tolaria("events", dead_run, *arguments).out.splitlines()]

    every, few = kinds("-a"), kinds()
    assert few == [kind for kind in every if kind not in BOOKKEEPING] != every
    assert kinds("-n", "2") == few[-2:]
    assert kinds("-r") == few[::-1]
    assert set(kinds("-t", "Step")) == {"StepCompleted"} == set(kinds("-g", "gradient norm"))
    assert [one["type"] for one in tolaria("events", dead_run, "-o", "json").lines] == every


def test_the_last_few_of_a_long_run_are_not_searched_for_in_all_of_it(tolaria, dead_run, monkeypatch):
    """A note says so if nothing was found."""
    monkeypatch.setattr("tolariad.cli.events._SEARCHED_MAX", 1)
    said = tolaria("events", dead_run, "-n", "3")

    assert (said.code, said.out) == (0, "")
    assert "of the last 1 events are left out; -a shows them" in said.err
