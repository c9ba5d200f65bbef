"""Runs of a user's program: their folders are in memory."""

from __future__ import annotations

import pytest

from tests.forked_recorders import a_recorder_of_its_own, recorders_are_forks
from tests.in_memory import tmp_path
from tests.quick_torch import enter_no_pytest, keep_no_stacks
from tolariad.daemon import analysing, program
from tolariad.library import attached, tolaria

__all__ = ["a_recorder_of_its_own", "recorders_are_forks", "tmp_path"]
keep_no_stacks()
enter_no_pytest()


@pytest.fixture(autouse=True)
def _a_library_as_it_is(monkeypatch):
    """Put back what runs with masks replace (tests/library/pruning.py): other tests of this process follow."""
    for owner, name in (
        (attached, "Trainer"),
        (tolaria, "require_prunable"),
        (analysing.Analysing, "obey"),
        (program.ProgramPolicy, "_take"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
