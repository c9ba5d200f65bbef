"""The Containerfile agrees with the project: copied files exist, versions are pinned, and its commands are valid."""

from __future__ import annotations

import json
import re

import click
import pytest

from tests.house.tree import ROOT
from tolariad.cli.tolaria import tolaria
from tolariad.cli.tolariad import tolariad
from tolariad.core.calc.settings.model import STOP_BUDGET_S

TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def instruction(name: str) -> list[str]:
    """Return the arguments of each instruction with this name."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{name} ")]


def test_what_is_copied_is_there_and_enough():
    """Both packages, and every file that the build reads."""
    copied = [one for line in instruction("COPY") for one in line.split()[:-1]]

    assert {"journal", "tolariad", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"} == set(copied)
    assert [one for one in copied if not (ROOT / one).exists()] == []


def test_everything_is_installed_by_the_constraints():
    """torch has the same version as elsewhere."""
    installs = re.findall(r"pip install[^&]*", " ".join(instruction("RUN")))
    torch = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]

    assert len(installs) == 2
    assert [one for one in installs if "-c constraints.txt" not in one] == []
    assert f"torch=={torch}" in installs[0]


def test_it_runs_as_nobody_special_and_is_given_time_to_stop():
    """It does not run as root. The time-out on its first line is longer than the daemon's own."""
    assert instruction("USER") == ["tolaria"]
    assert instruction("STOPSIGNAL") == ["SIGTERM"]
    assert int(re.search(r"--stop-timeout ([0-9]+)", TEXT)[1]) >= STOP_BUDGET_S + 5


@pytest.mark.parametrize(
    ("name", "program"), [("ENTRYPOINT", tolariad), ("HEALTHCHECK", tolaria)], ids=["entrypoint", "healthcheck"]
)
def test_its_commands_are_understood(name, program):
    """They are in exec form, so that signals reach the daemon, and the program accepts each word."""
    (given,) = instruction(name)
    program_name, *words = json.loads(given[given.index("[") :])
    assert program_name == program.name
    # Options of the program may stand before the command.
    place = next(n for n, word in enumerate(words) if word in program.list_commands(click.Context(program)))
    command = program.get_command(click.Context(program), words[place])

    assert command.make_context(words[place], [*words[place + 1 :]], resilient_parsing=False).params
