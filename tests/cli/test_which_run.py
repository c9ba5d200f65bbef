"""Commands that read a journal find the run as all other commands do."""

from __future__ import annotations

import pytest

from tolariad.cli import runs
from tolariad.forensics.why import TOPICS

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
    """Without a live run the error says how to name one."""
    said = tolaria("why", "pause")
    assert said.code == 3
    assert "no live run found" in said.err


def test_why_without_a_topic_lists_those_that_have_an_answer(tolaria, dead_run, monkeypatch):
    """The newest first, each with its event; after them the words of which nothing happened. A run's name is enough."""
    said = tolaria("why", dead_run)
    words = [line.split()[0] for line in said.out.splitlines()[:-1]]
    told = tolaria("why", dead_run, "--json").json
    assert said.code == 0
    assert words == list(told["topics"])
    numbers = [event["seq"] for event in told["topics"].values()]
    assert numbers == sorted(numbers, reverse=True)
    assert "checkpoint" in words
    assert "rollback" in said.out.splitlines()[-1]
    assert sorted([*words, *told["never"]]) == sorted(TOPICS)
    for word in words:
        assert tolaria("why", dead_run, word, "--json").json["event"] == told["topics"][word]
    monkeypatch.chdir(dead_run.parent.parent)
    monkeypatch.setattr(runs, "RUNS", dead_run.parent)
    assert tolaria("why", dead_run.name).out == said.out
