"""A run folder with a journal in it, for commands that read one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.house.tree import ROOT


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """Return a copy of the golden run: every later version can read its journal."""
    golden = sorted((ROOT / "tests" / "journals").glob("*/journal"))
    run = tmp_path_factory.mktemp("golden") / "run"
    shutil.copytree(golden[-1].parent, run)
    return run
