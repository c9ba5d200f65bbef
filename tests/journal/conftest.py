"""Fixtures of the journal's tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path(tmp_path):
    """A folder on a file system in memory, where there is one: for tests that sync hundreds of times."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
