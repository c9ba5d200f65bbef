"""A strategy is tried without a run, and checked as a run checks it."""

from __future__ import annotations

import json

import pytest

from tolariad.leyline import CommandRefused
from tolariad.strategy import StateRefused
from tolariad.strategy.__main__ import main
from tolariad.strategy.rehearsal import rehearse, sample_packets
from tolariad.strategy.serving import told

SOURCE = """
from tolariad.leyline import AdaptationCommand, CommandType

class Pauses:
    def step(self, packet):
        if packet.validation_loss == packet.validation_loss:
            return []
        return AdaptationCommand(version=1, command_id="p", command_type=CommandType.COMMAND_PAUSE)

class Nameless(Pauses):
    def step(self, packet):
        return AdaptationCommand(version=1, command_type=CommandType.COMMAND_PAUSE)

class Hoards(Pauses):
    def state_dict(self):
        return "x" * 40_000

    def load_state_dict(self, state):
        pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rehearsed.py"
    path.write_text(SOURCE)
    return path


def test_a_rehearsal_counts_commands_that_change_something(file):
    """The made-up run ends with a loss that is no number."""
    found = rehearse(f"{file}:Pauses")
    assert (found.packets, found.commands, found.state_bytes) == (len(list(sample_packets())), 1, 1)
    assert rehearse("default").commands > 5


@pytest.mark.parametrize(("name", "error"), [("Nameless", CommandRefused), ("Hoards", StateRefused)])
def test_a_rehearsal_refuses_what_a_run_refuses(file, name, error):
    """Commands and states alike."""
    with pytest.raises(error):
        rehearse(f"{file}:{name}")


def test_the_program_prints_json_or_the_reason(file, capsys):
    """Exit code 78 is that of a configuration that cannot be used."""
    assert main(["--rehearse", "--name", f"{file}:Pauses"]) == 0
    assert json.loads(capsys.readouterr().out)["commands"] == 1
    assert main(["--rehearse", "--name", f"{file}:Pawses"]) == 78
    assert "did you mean Pauses?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--name", "default"])


def test_an_error_of_the_users_is_told_with_its_line(capsys):
    """In one line of bounded length; the traceback goes to stderr."""
    try:
        raise ValueError("x" * 5_000)
    except ValueError as error:
        text = told(error, "failed in step()")
    assert text.startswith("failed in step(): ValueError: xxx")
    assert len(text) <= 2_000
    assert "Traceback" in capsys.readouterr().err
