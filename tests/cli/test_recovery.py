"""`tolaria rollback` and `tolaria emergency`: confirmation, order, and outcome."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_orders import in_background
from tolariad.core import messages as m


def test_a_rollback_is_waited_for_until_it_is_done(tolaria, live_run):
    """The trainer prepares and commits; the command prints the event that ended it."""
    recorder = live_run.recorder

    def prepare():
        opened = recorder.state.rollbacks.open.id
        recorder.report(m.RollbackPreparedReport(rollback=opened, participants=("training",), seconds=0.1))
        recorder.report(m.RolledBackReport(rollback=opened, step=0, commit_s=0.1, confirm_s=0.1))

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


@pytest.mark.parametrize("empty", ["", " "])
def test_a_target_without_a_name_is_nobodys_wish(tolaria, live_run, empty):
    """`--to "$ID"` with ID unset: a usage error and no rollback."""
    said = tolaria("rollback", "--dir", live_run.path.parent, "--yes", "--no-wait", "--to", empty)

    assert (said.code, "--to is empty" in said.err) == (2, True)
    assert live_run.recorder.state.rollbacks.begun == 0


def test_an_unknown_checkpoint_is_refused_by_name(tolaria, live_run):
    """Exit 4, with where to look."""
    said = tolaria("rollback", "--dir", live_run.path.parent, "--yes", "--to", "c999999")

    assert said.code == 4
    assert "c999999" in said.err


@pytest.mark.parametrize("level", ["major", "severe"])
@pytest.mark.parametrize("is_able", [True, False])
def test_an_emergency_that_goes_back_is_waited_for_until_it_has(tolaria, live_run, level, is_able):
    """The order ends with its rollback: done, or exit 1 and the reason if no checkpoint is left."""
    recorder = live_run.recorder

    def take_part():
        opened = recorder.state.rollbacks.open.id
        if not is_able:
            while recorder.state.rollbacks.open is not None:
                recorder.report(m.RollbackRefusedReport(rollback=opened, file="model.safetensors", why="is damaged"))
            return
        recorder.report(m.RollbackPreparedReport(rollback=opened, participants=("training",), seconds=0.1))
        recorder.report(m.RolledBackReport(rollback=opened, step=0, commit_s=0.1, confirm_s=0.1))

    trainer = in_background(live_run, lambda state: state.rollbacks.open, take_part)
    said = tolaria("emergency", level, "--dir", live_run.path.parent, "--yes", "--reason", "smells", "--json")
    trainer.join()

    first, second = said.lines
    ended = recorder.state.progress.branch
    assert first["outcome"] is None
    assert second["seq"] == first["seq"]
    if is_able:
        assert (said.code, second["outcome"]["event"], ended) == (0, "RolledBack", 1)
    else:
        assert (said.code, second["outcome"]["state"], ended) == (1, "failed", 0)
        assert "is damaged" in second["outcome"]["why"]


def test_an_emergency_need_not_be_waited_for(tolaria, live_run):
    """`--no-wait` prints the number when it is durable, while the rollback is in progress."""
    said = tolaria("emergency", "major", "--dir", live_run.path.parent, "--yes", "--no-wait", "--json")

    assert (said.code, len(said.lines), said.lines[0]["outcome"]) == (0, 1, None)
    assert live_run.recorder.state.rollbacks.open is not None


def test_an_emergency_that_a_halt_overtakes_is_not_done(tolaria, live_run):
    """CRITICAL is raised in the meantime: exit 1. A later rollback is only recorded, and done at once."""
    recorder = live_run.recorder

    def halt():
        recorder.submit(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"), m.Actor(uid=0), lambda _: None)

    other = in_background(live_run, lambda state: state.rollbacks.open, halt)
    said = tolaria("emergency", "major", "--dir", live_run.path.parent, "--yes", "--json")
    other.join()
    after = tolaria("emergency", "major", "--dir", live_run.path.parent, "--yes", "--json")

    assert (said.code, said.lines[1]["outcome"]["state"]) == (1, "overtaken")
    assert (after.code, after.lines[1]["outcome"]["event"]) == (0, "EmergencyRaised")


def test_a_critical_emergency_freezes_the_run(tolaria, live_run):
    """The order is done when the freeze is recorded; the run is frozen, with the reason."""
    reply = tolaria("emergency", "critical", "--dir", live_run.path.parent, "--yes", "--reason", "smoke", "--json")
    said, state = reply, live_run.recorder.state

    assert said.code == 0
    assert said.lines[1]["outcome"]["event"] == "RunFrozen"
    assert state.run.phase.value == "frozen"
    assert state.run.why == "smoke"


def test_what_loses_nothing_does_not_ask(tolaria, live_run):
    """MINOR is only recorded, with its reason."""
    said = tolaria("emergency", "MINOR", "--dir", live_run.path.parent, "--reason", "slow")

    assert said.code == 0
    assert live_run.recorder.state.emergency.why == "slow"


def at_a_terminal(live_run, answer, *words):
    """Return exit code and output of a command whose question is answered at a terminal."""
    command = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()", *words, "--no-wait"]
    terminal = [sys.executable, str(Path(__file__).with_name("terminal.py")), answer]
    ran = subprocess.run(
        [*terminal, *command, "--socket", str(live_run.path)], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("rollback", "--epoch", "0"), "Roll back?"),
        (("emergency", "severe"), "Raise a SEVERE emergency?"),
        (("stop", "--now"), "Stop without a checkpoint?"),
    ],
)
def test_at_a_terminal_it_asks_and_does_what_is_answered(live_run, words, question):
    """After no and ^C nothing is ordered, and the command says so; after yes it is."""
    before = live_run.recorder.state.seq
    no, interrupted = (at_a_terminal(live_run, answer, *words) for answer in ("n\n", "\x03"))
    refused_at = live_run.recorder.state.seq
    yes = at_a_terminal(live_run, "y\n", *words)

    assert question in no[1]
    assert (no[0], interrupted[0], yes[0]) == (1, 130, 0)
    assert "nothing was ordered" in no[1]
    assert refused_at == before
    assert live_run.recorder.state.seq > before
