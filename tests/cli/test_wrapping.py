"""Sentences fit the terminal; files keep one line for one thing."""

from __future__ import annotations

import io
import sys

from tests.cli.stored import record
from tolariad.cli.output import confirm
from tolariad.cli.wrapping import fitted_to, width, wrapped


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_long_line_is_broken_at_spaces_and_indented(monkeypatch):
    """No word is cut, no space between words is lost, and colours take no columns."""
    text = "  last error  the training \x1b[31mraised\x1b[0m the same exception twice after step 7: no such label"
    lines = wrapped(text, 40, 14)

    assert all(width(line) <= 40 for line in lines)
    assert lines[0].startswith("  last error  the")
    assert all(line.startswith(" " * 14 + line.lstrip()[0]) for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text.strip()


def test_a_stream_that_is_no_terminal_keeps_lines_whole(monkeypatch):
    """A search by lines finds the whole sentence."""
    monkeypatch.setenv("COLUMNS", "40")
    text = "word " * 30
    assert fitted_to(io.StringIO(), text) == [text]
    assert max(map(len, fitted_to(Terminal(), text))) <= 40


def test_commands_and_long_words_stay_whole():
    """Half a command must not be copied; a path that is longer than the terminal is not cut."""
    command = "              tolaria why /a/folder/with/a/long/name/of/a/run death"
    assert wrapped(command, 40, 14) == [command]
    assert wrapped("see /a/folder/that/is/longer/than/the/terminal now", 20, 2)[1].strip() == (
        "/a/folder/that/is/longer/than/the/terminal"
    )


def at_terminal(monkeypatch):
    """Make stdout and stdin a terminal of 80 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def test_rows_of_tables_fit_the_terminal(tolaria, run_dir, monkeypatch):
    """Only the last column is broken, at a space and under itself; no age has two units."""
    record(run_dir)
    at_terminal(monkeypatch)
    monkeypatch.chdir(run_dir.parent)
    for arguments in (("checkpoints", run_dir.name), ("checkpoints", run_dir.name, "--verify"), ("list", ".")):
        said = tolaria(*arguments)
        assert said.code == 0
        assert all(len(line) <= 80 for line in said.out.splitlines()), said.out
    monkeypatch.setenv("COLUMNS", "66")
    head, *lines = tolaria("checkpoints", run_dir.name, "--verify").out.splitlines()
    broken = [line for line in lines if not line.startswith("c0")]
    assert broken, lines
    assert {len(line) - len(line.lstrip()) for line in broken} == {head.index("STATE")}


def test_a_question_fits_the_terminal(monkeypatch):
    """The answer is given on the last line of it."""
    at_terminal(monkeypatch)
    asked, errors = [], Terminal()
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: asked.append(text) or "y")
    confirm("Stop without a checkpoint? " + "The next start must run steps again. " * 3)

    lines = [*errors.getvalue().splitlines(), *asked]
    assert max(map(len, lines)) <= 80
    assert "".join(lines).replace(" ", "").endswith("again.[y/N]:")
