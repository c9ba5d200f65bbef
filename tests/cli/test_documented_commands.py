"""Every command line on a page is one that the programs accept: command and options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tolariad.cli.tolaria import tolaria
from tolariad.cli.tolariad import tolariad

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = {"tolaria": tolaria, "tolariad": tolariad}


def lines(text: str) -> list[str]:
    """List the command lines of a page: in code blocks, and in backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [line for block in blocks for line in block.splitlines()]
    found += re.findall(r"`((?:tolaria|tolariad) [^`|]+)`", text)
    # One line may hold several commands, and a comment.
    parts = [part.strip() for line in found for part in line.split("#")[0].split(";")]
    return [part for part in parts if re.match(r"(tolaria|tolariad) [a-z-]", part)]


def unknown(line: str) -> str:
    """Return the part of a command line that the program does not know, or an empty text."""
    program, *words = shlex.split(line)
    command: click.Command = PROGRAMS[program]
    options = {spelling for parameter in command.params for spelling in parameter.opts}
    for word in words:
        below = None
        if isinstance(command, click.Group) and not word.startswith("-"):
            below = command.get_command(click.Context(command), word)
        if below is not None:
            command = below
            options |= {spelling for parameter in command.params for spelling in parameter.opts}
        elif word.startswith("--") and word.split("=")[0] not in {*options, "--help"}:
            return f"{line}: {word}"
    return f"{line}: no such command" if command is PROGRAMS[program] else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_exists(page):
    """A command that was renamed is found on every page that shows it."""
    found = [wrong for line in lines(page.read_text(encoding="utf-8")) if (wrong := unknown(line))]

    assert found == []


def test_a_command_that_does_not_exist_is_found():
    """The check itself tells a wrong command and a wrong option."""
    assert unknown("tolaria go-back RUN")
    assert unknown("tolaria rollback --epok 3")
    assert not unknown("tolaria rollback --epoch 3 --yes")
