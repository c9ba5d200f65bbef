"""`tolaria rollback` and `tolaria emergency`: asked for by name, confirmed, and told how they ended."""

from __future__ import annotations

import pytest

from tests.cli.test_orders import in_background
from tolariad.core.vocabulary import rollback as rb


def test_a_rollback_is_waited_for_until_it_is_done(tolaria, live_run):
    """The trainer prepares and commits; the command prints the event that ended it."""
    recorder = live_run.recorder

    def prepare():
        opened = recorder.state.rollbacks.open.id
        recorder.report(rb.RollbackPreparedReport(rollback=opened, participants=("training",), seconds=0.1))
        recorder.report(rb.RolledBackReport(rollback=opened, step=0, commit_s=0.1, confirm_s=0.1))

    trainer = in_background(live_run, lambda state: state.rollbacks.open, prepare)
    said = tolaria("rollback", "--dir", live_run.path.parent, "--yes", "--epoch", "0", "--reason", "spike", "--json")
    trainer.join()

    first, second = said.lines
    assert said.code == 0
    assert (second["seq"], second["outcome"]["event"]) == (first["seq"], "RolledBack")
    assert recorder.state.progress.branch == 1
    assert "spike" in tolaria("events", live_run.path.parent, "-t", "RollbackBegun", "--json").out


def test_what_can_lose_work_asks_first(tolaria, live_run):
    """Without a terminal it needs --yes; nothing is ordered."""
    for words in (("rollback",), ("emergency", "severe"), ("emergency", "critical")):
        said = tolaria(*words, "--dir", live_run.path.parent)
        assert said.code == 2
        assert "--yes" in said.err
    assert live_run.recorder.state.rollbacks.begun == 0
    assert live_run.recorder.state.emergency.raised == 0


@pytest.mark.parametrize("words", [("--to", "c1", "--epoch", "1"), ("--epoch", "1", "--step", "3")])
def test_two_targets_are_one_too_many(tolaria, live_run, words):
    """A usage error, exit 2."""
    said = tolaria("rollback", "--dir", live_run.path.parent, "--yes", *words)

    assert said.code == 2


def test_an_unknown_checkpoint_is_refused_by_name(tolaria, live_run):
    """Exit 4, with where to look."""
    said = tolaria("rollback", "--dir", live_run.path.parent, "--yes", "--to", "c999999")

    assert said.code == 4
    assert "c999999" in said.err


def test_a_critical_emergency_freezes_the_run(tolaria, live_run):
    """The order is done when it is recorded; the run stands still and says why."""
    said = tolaria("emergency", "critical", "--dir", live_run.path.parent, "--yes", "--reason", "smoke")
    state = live_run.recorder.state

    assert said.code == 0
    assert state.run.phase.value == "frozen"
    assert state.run.why == "smoke"
