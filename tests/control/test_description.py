"""The interface description: well-formed, complete, and the same as the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import varlink

from tolariad.control import methods
from tolariad.control.wire import INTERFACE, SERVICE
from tolariad.core.run.slice import Phase
from tolariad.core.run.words import StopMode

FOLDER = Path(methods.__file__).parent


@pytest.mark.parametrize("name", [INTERFACE, SERVICE])
def test_a_foreign_parser_reads_the_description(name):
    """PyPI's varlink parses it, and finds a comment before each method."""
    text = (FOLDER / f"{name}.varlink").read_text()

    assert varlink.Interface(text).name == name
    assert len(re.findall(r"^# .*\n(?:# .*\n)*method ", text, re.MULTILINE)) == len(
        re.findall(r"^method ", text, re.MULTILINE)
    )


@pytest.mark.parametrize("name", [INTERFACE, SERVICE])
def test_systemds_parser_accepts_the_description(name):
    """`varlinkctl validate-idl`, where the machine has it."""
    if shutil.which("varlinkctl") is None:
        pytest.skip("varlinkctl is not installed (systemd 255 and newer have it)")
    checked = subprocess.run(
        ["varlinkctl", "validate-idl", str(FOLDER / f"{name}.varlink")], capture_output=True, text=True, timeout=20
    )

    assert checked.returncode == 0, checked.stderr


def test_no_type_has_the_name_of_a_method():
    """Types, methods and errors share one name space."""
    text = (FOLDER / f"{INTERFACE}.varlink").read_text()
    names = re.findall(r"^(?:type|method|error) (\w+)", text, re.MULTILINE)

    assert len(names) == len(set(names))


def test_words_of_the_description_are_the_words_of_the_code():
    """Phases and stop modes are spelt the same on both sides."""
    text = (FOLDER / f"{INTERFACE}.varlink").read_text()

    def words(name):
        return re.search(rf"type {name} \(([^)]*)\)", text).group(1).split(", ")

    assert words("RunPhase") == [phase.value for phase in Phase]
    assert words("StopMode") == [mode.value for mode in StopMode]
