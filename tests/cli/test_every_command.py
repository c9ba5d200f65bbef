"""What every command has: an example that can be typed, `--json`, completion in a shell, and bars only for people."""

from __future__ import annotations

import io
import json
import os
import shlex

import click
import pytest
from click.shell_completion import ShellComplete

from tests.cli.test_operations_page import ALL
from tolariad.cli.examples import EXAMPLES, put_examples
from tolariad.cli.long_work import Line, bar
from tolariad.cli.tolaria import tolaria as tolaria_command
from tolariad.forensics.topics import TOPICS

# Commands that read a run without a daemon, with what they need besides it.
READING = {
    "checkpoints": ("--verify",),
    "diff": ("1", "now"),
    "events": ("-n", "5"),
    "journal export": (),
    "journal repair": ("--dry-run",),
    "journal stats": (),
    "journal verify": (),
    "lr show": (),
    "metrics": ("loss",),
    "plot": ("loss",),
    "prune status": (),
    "quarantine list": (),
    "report": ("-o", "report.html"),
    "seeds list": (),
    "state": (),
    "status": (),
    "version": (),
    "why": ("checkpoint",),
}
RUN_FIRST = {"diff", "why", "metrics", "plot"}


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_each_has_an_example_and_json(name, command):
    """The example is a line of its own below the help, and command and options of it are known."""
    put_examples(command, name)
    shown = command.get_help(click.Context(command, info_name=name)).splitlines()

    assert any("--json" in option.opts for option in command.params)
    for words in EXAMPLES[name].split("\n"):
        assert f"    {name} {words}" in shown
        command.make_context(name, shlex.split(words))


def test_no_example_is_of_a_command_that_is_gone():
    """The table has the commands there are."""
    assert sorted(EXAMPLES) == sorted(name for name, _ in ALL)


@pytest.mark.parametrize("name", READING)
def test_json_is_json(tolaria, dead_run, name):
    """One object, or one on each line, and nothing else on stdout."""
    more = READING[name]
    words = [*name.split(), dead_run, *more] if name in RUN_FIRST else [*name.split(), *more, dead_run]
    said = tolaria(*words, "--json")

    assert said.code in (0, 1, 3), said.err
    assert all(isinstance(one, dict) for one in said.lines)
    assert said.lines or name in ("checkpoints", "quarantine list")


@pytest.mark.parametrize("name", READING)
def test_an_error_is_json_too(tolaria, name):
    """Of a run that is not there."""
    more = READING[name]
    words = [*name.split(), "runs/none", *more] if name in RUN_FIRST else [*name.split(), *more, "runs/none"]
    said = tolaria(*words, "--json")

    assert said.code not in (0, 1)
    assert isinstance(json.loads(said.err.splitlines()[-1]), dict)


def offered(*words):
    """Return what a shell offers for the last word."""
    *before, incomplete = words
    completion = ShellComplete(tolaria_command, {}, "tolaria", "_TOLARIA_COMPLETE")
    return {one.value for one in completion.get_completions(before, incomplete) if one.type == "plain"}


def test_a_shell_completes_commands_options_runs_and_topics(tmp_path):
    """Runs by their names, and those alone that begin as typed."""
    for name in ("monday", "tuesday", "es\x1b[31m"):
        (tmp_path / "work" / "runs" / name / "journal").mkdir(parents=True)

    assert offered("st") == {"status", "state", "stage", "stop"}
    assert {"--at", "--rows", "--json", "--run"} <= offered("why", "--")
    assert offered("status", "") == {"monday", "tuesday"}
    assert offered("status", "-r", "mo") == {"monday"}
    assert offered("diff", "monday", "t") == {"tuesday"}
    assert {*TOPICS, "phase", "monday"} <= offered("why", "")
    assert offered("why", "monday", "sp") == {"spike"}


class Terminal(io.StringIO):
    """A stream that is a terminal. `wait` returns when something was written."""

    def isatty(self):
        return True


def test_a_bar_is_drawn_by_share_or_by_time():
    """With places a share; without them a mark that moves; never wider than the terminal."""
    line = Line("reading", 10, 20, 0.0)
    line.place = 15
    assert line.drawn(3.0, 80) == f"reading [{'#' * 15}{' ' * 15}]  50%"
    line.place = 99
    assert line.drawn(3.0, 80).endswith("] 100%")
    unknown = [Line("folding", 0, 0, 0.0).drawn(seconds, 80) for seconds in (1.0, 1.1, 99.0, 200.0)]
    assert len({one.partition("]")[0] for one in unknown}) > 1
    assert unknown[0].endswith("] 1 s")
    assert unknown[3].endswith("3 min 20 s")
    for columns in range(1, 120):
        assert len(line.drawn(3.0, columns)) < max(2, columns)


def test_a_bar_is_seen_on_a_terminal_alone_and_is_gone_at_the_end(monkeypatch):
    """It draws by itself, also while the work says nothing. On a pipe not one byte is written."""
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 24)))
    with bar("reading", stream=terminal, wait_s=0.0):
        while "reading" not in terminal.getvalue():
            pass
    with bar("reading", 0, 2, stream=pipe, wait_s=0.0) as at:
        at(1)

    assert terminal.getvalue().endswith("\r\x1b[K")
    assert pipe.getvalue() == ""


def test_nothing_is_drawn_of_work_that_is_soon_done():
    """Within the first second."""
    terminal = Terminal()
    with bar("reading", stream=terminal, wait_s=3600.0):
        pass

    assert terminal.getvalue() == ""
