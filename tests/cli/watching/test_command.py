"""Which form `watch` takes: the screen, or lines; and which run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import own_place
from tolariad.cli import runs
from tolariad.cli.watching import command

INSTALL = "pip install 'tolariad[tui]'"


@pytest.fixture
def shown(monkeypatch):
    """Return the list of what `watch` would have shown: form and folders."""
    found = []
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    monkeypatch.setattr(command, "_lines", lambda target, **_: found.append(("lines", [target.folder.name])) or 0)
    monkeypatch.setattr(
        command, "_screen", lambda targets, _: found.append(("screen", [one.folder.name for one in targets])) or 0
    )
    return found


def two_live(monkeypatch, tmp_path):
    targets = [runs.Target(tmp_path / name, tmp_path / name / "control.sock") for name in "ab"]
    monkeypatch.setattr(runs, "live", lambda: targets)


@pytest.mark.parametrize(
    ("options", "form"), [((), "screen"), (("--plain",), "lines"), (("--json",), "lines")], ids=str
)
def test_on_a_terminal_it_is_the_screen_unless_lines_are_asked_for(tolaria, shown, run_dir, options, form):
    """`--plain` and `--json` are lines, as elsewhere than on a terminal."""
    said = tolaria("watch", run_dir, *options)

    assert (said.code, said.err) == (0, "")
    assert shown == [(form, ["run"])]


def test_without_textual_one_line_says_how_to_install_it(tolaria, shown, run_dir, monkeypatch):
    """The lines are shown all the same; nobody who asked for lines reads it."""
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
    said, plain = tolaria("watch", run_dir), tolaria("watch", run_dir, "--plain")

    assert said.err.count("\n") == 1
    assert INSTALL in said.err
    assert plain.err == ""
    assert [form for form, _ in shown] == ["lines", "lines"]


def test_of_several_live_runs_the_screen_lets_choose_and_lines_need_a_name(tolaria, shown, monkeypatch, tmp_path):
    """The error of `--plain` lists them."""
    two_live(monkeypatch, tmp_path)

    assert tolaria("watch").code == 0
    assert shown == [("screen", ["a", "b"])]
    refused = tolaria("watch", "--plain")
    assert refused.code == 2
    assert "2 runs are live" in refused.err


def test_without_a_live_run_it_says_so(tolaria, shown, monkeypatch):
    """Exit 3, before the screen is taken."""
    monkeypatch.setattr(runs, "live", list)

    assert tolaria("watch").code == 3
    assert shown == []


def test_the_first_words_need_neither_textual_nor_the_events():
    """They are on the screen before anything is loaded that takes longer than the interpreter."""
    code = "import sys; import tolariad.cli.watching.command; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(own_place.ROOT)}
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

    assert "tolariad.cli.runs" in loaded.stdout.split()
    assert not {"textual", "rich", "plotext", "asyncio", "tolariad.core.messages"} & set(loaded.stdout.split())
