"""systemd's journal for a test: a journald in a mount namespace of its own, whose /run is in memory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.outside.programs import outside
from tests.waiting import wait_for

_WORLD = """set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 memory /run
mkdir -p /run/systemd/journal /run/log/journal
exec "$0"
"""


class Journald:
    """A running journald. `keep` runs a program whose lines it keeps."""

    def __init__(self, pid: int) -> None:
        self._inside = (outside("nsenter"), "-t", str(pid), "-m")

    def keep(self, name: str, *command: str) -> int:
        """Run a command to its end, with its output in the journal under this name. Return its exit code."""
        return subprocess.run([*self._inside, "systemd-cat", "-t", name, *command], cwd="/", check=False).returncode

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Return the entries under this name."""
        command = [*self._inside, "journalctl", "--sync", "-t", name, "-o", "json", "--no-pager", "-q"]
        subprocess.run([*self._inside, "journalctl", "--sync"], check=True)
        command.remove("--sync")
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [json.loads(line) for line in found.splitlines()]


@contextmanager
def journald() -> Iterator[Journald]:
    """Run a journald. The test is skipped if this user may not make a namespace."""
    program = outside("systemd-journald")
    if os.geteuid() != 0:
        pytest.skip("a journald of the tests' own takes root")
    command = [outside("unshare"), "--mount", "bash", "-c", _WORLD, program]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: Path(f"/proc/{process.pid}/root", "run/systemd/journal/stdout").exists(), "the journal")
            yield Journald(process.pid)
        finally:
            process.terminate()
            process.wait(30)
