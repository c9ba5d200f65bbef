"""Commands that read a journal find the run as all other commands do."""

from __future__ import annotations

import pytest

READING = [
    ("events", "-n", "1"),
    ("state",),
    ("why", "StepCompleted"),
    ("checkpoints",),
    ("journal", "verify"),
    ("journal", "stats"),
    ("journal", "export", "--since", "step:12"),
    ("quarantine", "list"),
]


@pytest.mark.parametrize("command", READING, ids=lambda one: "_".join(one[:2]))
def test_a_command_that_reads_finds_the_run_as_the_others_do(tolaria, live_run, monkeypatch, command):
    """By an option before the command, by its socket, or by the environment; without them the only live run."""
    folder = live_run.path.parent
    for given in (("--dir", folder), ("--socket", live_run.path)):
        said = tolaria(*given, *command)
        assert said.code == 0, said.err
    monkeypatch.setenv("TOLARIA_RUN", str(folder))
    assert tolaria(*command).out == said.out


def test_one_argument_of_why_is_the_topic(tolaria, dead_run):
    """A folder alone lacks its topic; without a live run the error says how to name one."""
    said = tolaria("why", dead_run)
    assert (said.code, said.err.splitlines()[0]) == (2, "tolaria: Missing argument 'TOPIC'.")
    assert "why [OPTIONS] [RUN] TOPIC" in tolaria("why", "--help").out
    said = tolaria("why", "pause")
    assert said.code == 3
    assert "no live run found" in said.err
