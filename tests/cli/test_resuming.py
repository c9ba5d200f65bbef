"""`tolaria resume --ranks N` starts a run that has ended; a live run, and what is no run, are refused by name."""

from __future__ import annotations

import pytest


@pytest.fixture
def asked(monkeypatch):
    """The starts that the daemon was asked for, which it does not make."""
    found = []
    monkeypatch.setattr("tolariad.daemon.run", lambda request: found.append(request) or 0)
    return found


def test_a_run_that_has_ended_is_started_with_other_ranks(tolaria, dead_run, asked):
    """As `tolariad run --dir RUN --set parallel.ranks=3` does, whichever way the run is named."""
    for words in ((dead_run, "--ranks", "3"), ("--dir", dead_run, "--ranks", "3")):
        said = tolaria("resume", *words)
        assert said.code == 0, said.err
    assert [(one.run_dir, one.sets, one.config, one.task, one.epochs, one.accept_config) for one in asked] == [
        (dead_run, ("parallel.ranks=3",), None, None, None, False)
    ] * 2


def test_a_live_run_is_not_started_again(tolaria, live_run, asked):
    """Its number of ranks is that of its start: the hint says how to end it."""
    said = tolaria("resume", "--dir", live_run.path.parent, "--ranks", "3")

    assert (said.code, asked) == (4, [])
    assert "its number of ranks is that of its start" in said.err
    assert "tolaria stop" in said.err


def test_what_ranks_cannot_mean_is_refused(tolaria, dead_run, asked, tmp_path):
    """An option of an order beside it, a folder without a run, no rank at all."""
    (tmp_path / "empty").mkdir()
    words = {
        "the other options": (dead_run, "--ranks", "3", "--after-gap"),
        "there is no journal": ("--dir", tmp_path / "empty", "--ranks", "3"),
        "0 is not in the range": (dead_run, "--ranks", "0"),
    }
    for why, given in words.items():
        said = tolaria("resume", *given)
        assert said.code == 2, (why, said.err)
        assert why in said.err
    assert not asked
