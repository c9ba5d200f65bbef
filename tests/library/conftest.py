"""Runs of a user's program: their folders are in memory."""

from __future__ import annotations

import pytest

from tests.in_memory import tmp_path
from tests.quick_torch import keep_no_stacks
from tolariad.library import live

__all__ = ["tmp_path"]
keep_no_stacks()


@pytest.fixture(autouse=True)
def _a_library_as_it_is(monkeypatch):
    """Put back what runs with masks replace (tests/library/pruning.py): other tests of this process follow."""
    for name in ("Trainer", "_require_no_pruning"):
        monkeypatch.setattr(live, name, getattr(live, name))
