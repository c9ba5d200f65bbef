"""The interface description: well-formed, complete, and the same as the code."""

from __future__ import annotations

import asyncio
import re
import subprocess

import pytest
import varlink

from tests.outside.programs import outside
from tolariad.control import methods
from tolariad.control.wire import INTERFACE, SERVICE
from tolariad.core import messages as m
from tolariad.core import state as st


def served(name: str) -> str:
    """The description as a client gets it."""
    return asyncio.run(methods.description(name))


@pytest.mark.parametrize("name", [INTERFACE, SERVICE])
def test_a_foreign_parser_reads_the_description(name):
    """PyPI's varlink parses it, and finds a comment before each method."""
    text = served(name)

    assert varlink.Interface(text).name == name
    assert len(re.findall(r"^# .*\n(?:# .*\n)*method ", text, re.MULTILINE)) == len(
        re.findall(r"^method ", text, re.MULTILINE)
    )


@pytest.mark.outside
@pytest.mark.parametrize("name", [INTERFACE, SERVICE])
def test_systemds_parser_accepts_the_description(name, tmp_path):
    """`varlinkctl validate-idl` accepts it."""
    program = outside("varlinkctl")
    file = tmp_path / f"{name}.varlink"
    file.write_text(served(name))
    checked = subprocess.run([program, "validate-idl", str(file)], capture_output=True, text=True, timeout=20)

    assert checked.returncode == 0, checked.stderr


def test_no_element_may_be_absent():
    """A map of optional numbers is a syntax error to systemd's parser, up to 262."""
    text = served(INTERFACE)

    assert "  metrics: [string]object,\n" in text
    assert "]?" not in text


def test_no_type_has_the_name_of_a_method():
    """Types, methods and errors share one name space."""
    text = served(INTERFACE)
    names = re.findall(r"^(?:type|method|error) (\w+)", text, re.MULTILINE)

    assert len(names) == len(set(names))


def test_words_of_the_description_are_the_words_of_the_code():
    """Phases and stop modes are spelt the same on both sides."""
    text = served(INTERFACE)

    def words(name):
        return re.search(rf"type {name} \(([^)]*)\)", text).group(1).split(", ")

    assert words("RunPhase") == [phase.value for phase in st.Phase]
    assert words("StopMode") == [mode.value for mode in m.StopMode]


def test_the_orders_of_the_first_version_keep_their_declarations():
    """They are made from Structs: a field that is renamed, moved or made optional would change what clients rely on."""
    found = re.findall(r"^method (\w+\(.*\)) -> \(seq: int, outcome: \?Outcome\)$", served(INTERFACE), re.MULTILINE)
    every = "id: ?string, reason: ?string"

    assert set(found) >= {
        f"Pause({every})",
        f"Resume(after_gap: ?bool, {every})",
        f"Stop(mode: ?StopMode, {every})",
        f"Checkpoint({every})",
        f"LrSet(group: string, value: float, policy: ?RatePolicy, function: ?Tabulated, {every})",
        f"Rollback(to: ?string, epoch: ?int, step: ?int, tier: ?RollbackTier, {every})",
        f"Emergency(level: EmergencyLevel, {every})",
        "QuarantineAdd(batches: ?QuarantinedBatches, checkpoint: ?string, seed: ?string, until: ?int, " + f"{every})",
        f"QuarantineRemove(name: string, {every})",
        f"Note(text: string, {every})",
    }
