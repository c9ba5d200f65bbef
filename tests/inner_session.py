"""A session of pytest in a folder, with the suite's own plugins, for the tests of these plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import own_place

CONFTEST = """
from tests import own_place, second_look, workers
own_place.settle()
def pytest_addoption(parser):
    workers.add_option(parser)
    second_look.add_option(parser)
def pytest_configure(config):
    config.pluginmanager.register(workers)
    config.pluginmanager.register(second_look)
def pytest_unconfigure():
    own_place.leave()
"""


def session(folder: Path, *arguments: str, **files: str) -> tuple[int, str]:
    """Write `test_NAME.py` of each file, run pytest there, and return its exit code and what it printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "--durations=5", "-ra", *arguments]
    environment = os.environ | {"PYTHONPATH": str(own_place.ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment
    )
    return ended.returncode, ended.stdout + ended.stderr
