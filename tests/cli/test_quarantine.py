"""`tolaria quarantine`: entries come and go by order, and are read back from the journal."""

from __future__ import annotations

import pytest

from tolariad.core import messages as m


def test_entries_are_added_listed_and_removed(tolaria, live_run):
    """Each order is done when it is recorded; the entry has its reason."""
    run = live_run.path.parent
    added = tolaria("quarantine", "add", "--dir", run, "--batch", "3:17-20", "--reason", "bad labels", "--json")
    one = tolaria("quarantine", "add", "--dir", run, "--batch", "4:2")
    listed = tolaria("quarantine", "list", run, "--json")
    removed = tolaria("quarantine", "remove", "q0001", "--dir", run)

    assert (added.code, one.code, removed.code) == (0, 0, 0)
    assert added.lines[-1]["outcome"]["event"] == "QuarantineAdded"
    assert [(row["name"], row["epoch"], row["first"], row["last"]) for row in listed.lines] == [
        *(("q0001", 3, 17, 20), ("q0002", 4, 2, 2)),
    ]
    assert listed.lines[0]["why"] == "bad labels"
    assert live_run.recorder.state.quarantine.batches == (m.Batches(4, 2, 2),)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--batch", "3"),
        ("--batch", "3:5", "--checkpoint", "c000001"),
        ("--batch", "a:b"),
        ("--seed", "s1", "--checkpoint", "c000001"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(tolaria, live_run, words):
    """Exit 2, and nothing is ordered."""
    said = tolaria("quarantine", "add", "--dir", live_run.path.parent, *words)

    assert said.code == 2
    assert live_run.recorder.state.quarantine.added == 0


def test_what_is_not_there_is_refused_by_name(tolaria, live_run):
    """Exit 4, with where to look."""
    said = tolaria("quarantine", "remove", "q0099", "--dir", live_run.path.parent)
    seed = tolaria("quarantine", "add", "--seed", "s1", "--dir", live_run.path.parent)

    assert (said.code, seed.code) == (4, 4)
    assert "q0099" in said.err
    assert "there is no seed 's1'" in seed.err
