"""docs/operations.md lists every command, option, exit code, phase and method."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import click
import pytest

from tolariad.cli.errors import Exit
from tolariad.cli.tolaria import tolaria
from tolariad.cli.tolariad import tolariad
from tolariad.control.connection import ServerLimits
from tolariad.control.methods import description
from tolariad.control.wire import INTERFACE
from tolariad.core import state as st
from tolariad.forensics.topics import TOPICS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def commands(command, name):
    """Yield every subcommand with its whole name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command, info_name=name)
    for below in command.list_commands(context):
        yield from commands(command.get_command(context, below), f"{name} {below}")


ALL = [*commands(tolaria, "tolaria"), *commands(tolariad, "tolariad")]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_a_command_and_its_options_are_on_the_page(name, command):
    """The page has the command as it is typed, and every spelling of every option."""
    options = [spelling for option in command.params if isinstance(option, click.Option) for spelling in option.opts]

    assert re.search(rf"`{name}[ `]", PAGE)
    assert [one for one in options if not re.search(rf"[` \[]{re.escape(one)}[` ]", PAGE)] == []


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_a_command_and_its_options_have_help(name, command):
    """`--help` describes each option."""
    assert command.help
    assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []


def test_exit_codes_phases_and_methods_are_on_the_page():
    """None is missing."""
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    methods = re.findall(r"^(?:method|error) (\w+)", asyncio.run(description(INTERFACE)), re.MULTILINE)

    assert {code.value for code in Exit} | {0, 2, 65, 70, 74, 75, 78, 130, 143} == codes
    assert [phase.value for phase in st.Phase if f"`{phase.value}`" not in PAGE] == []
    assert [method for method in methods if f"`{method}`" not in PAGE] == []


def test_every_word_that_why_knows_is_on_the_page_and_in_its_help():
    """The page names every topic of `tolaria why`."""
    words = [*TOPICS, "phase"]
    row = next(line for line in PAGE.splitlines() if line.startswith("| `tolaria why"))
    help_ = dict(ALL)["tolaria why"].help

    assert [word for word in words if f"`{word}`" not in row] == []
    assert [word for word in words if not re.search(rf"\b{word}\b", help_)] == []


def test_the_bounds_on_the_page_are_those_of_the_server():
    """The page's numbers are those of the code."""
    limits = ServerLimits()
    said = (
        f"a message has at most {limits.message_bytes >> 20} MiB",
        f"A connection with {2 * limits.message_bytes >> 20} MiB",
        f"{limits.connections} connections, {limits.connections_a_user} of one user",
        f"{limits.changes_per_s:g} orders",
        f"{limits.changes_burst} at once",
        f"after {limits.idle_s / 60:g} minutes",
    )

    assert [one for one in said if one not in " ".join(PAGE.split())] == []
    assert limits.stall_s == 60
