"""The fixture `tmp_path` on a file system in memory, for tests whose runs sync hundreds of times.

A conftest that imports it replaces pytest's for the tests beside it. What a disk does to a run is not their promise:
journal, kernel, storage, daemon and campaign are tested on the disk. There is the disk's folder if memory is short, and
if `--basetemp` says where folders are kept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
# A test takes some 10 MB at once; a container's default of 64 MB would not do.
ROOM = 2 << 30


def has_room() -> bool:
    """Return whether there is such a file system with enough space."""
    return MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder of this test. A failed test's is copied to where pytest keeps folders."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    if request.config.option.basetemp or not has_room():
        yield tmp_path_factory.mktemp(name)
        return
    failed = request.session.testsfailed
    with tempfile.TemporaryDirectory(prefix="tolaria-test-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        if request.session.testsfailed > failed:
            # `cp` leaves nothing out: there are sockets among the files.
            subprocess.run(["cp", "-a", folder, tmp_path_factory.mktemp(name)], check=False)
