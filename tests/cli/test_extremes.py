"""Impossible values in every option of every command: each ends with one of its exit codes and a sentence, never a
traceback.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.cli.stored import record
from tolariad.cli.errors import translated
from tolariad.cli.tolaria import tolaria

NUMBERS = (
    "-1",
    "0",
    str(2**31),
    str(2**53),
    str(2**63),
    str(2**64),
    "9" * 23,
    "9" * 5000,
    "nan",
    "inf",
    "-inf",
    "1e308",
)
WORDS = (
    "",
    "x" * 5000,
    "\udcff",
    "\u202e\x9b",
    "seq:" + "9" * 23,
    "step:" + "9" * 5000,
    "9" * 5000,
    "@1e308",
    "-9" * 9,
)
# They run until they are told to end, or write a file of that name.
LEFT_OUT = {"--output", "--follow"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return every command with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


COMMANDS = dict(commands(tolaria))


def options(command: click.Command) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return each option that takes a value, with the values to try."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not LEFT_OUT & set(option.opts):
            is_number = option.type.name in ("integer", "float", "integer range", "float range")
            yield option.opts[-1], NUMBERS if is_number else WORDS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has ended."""
    folder = tmp_path_factory.mktemp("run")
    record(folder)
    return folder


@pytest.mark.sample(10)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_with_an_extreme_ends_with_a_sentence(words, run):
    """No daemon answers at the given socket, so a command that passes the checks ends there."""
    command = COMMANDS[words]
    arguments = [
        "x" for one in command.params if isinstance(one, click.Argument) and one.required and one.name != "run"
    ]
    takes_run = any(isinstance(one, click.Argument) and one.name == "run" for one in command.params)
    live = any("--socket" in one.opts for one in command.params)
    place = ["--socket", "/nonexistent/socket"] if live else [str(run)] if takes_run else []
    unexpected = []
    for option, values in options(command):
        for value in values:
            result = CliRunner().invoke(tolaria, [*words, *place, *arguments, f"{option}={value}"])
            error = result.exception
            if error is not None and not isinstance(error, SystemExit) and translated(error) is None:
                unexpected.append((option, value[:30], repr(error)[:200]))

    assert unexpected == []
