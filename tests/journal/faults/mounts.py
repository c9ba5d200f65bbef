"""File systems of the tests' own: an ext4 in a file, a small tmpfs. They take root; without it the tests are skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.journal.faults.harness import Acks, PipedAcks, Plan, work

MEBIBYTE = 1 << 20


def cannot_mount() -> str:
    """Why nothing can be mounted here; empty where it can."""
    if os.geteuid() != 0:
        return "mounting takes root"
    missing = [tool for tool in ("mount", "umount", "mkfs.ext4") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"mounts are not allowed here: {tried.stderr.strip()[:100]}"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def call(*command: str | Path) -> None:
    """Run one tool of the system. Raises CalledProcessError with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def ext4_image(path: Path, size: int) -> Path:
    """An empty ext4 in a file, sparse."""
    with path.open("wb") as file:
        file.truncate(size)
    call("mkfs.ext4", "-q", "-F", "-O", "^metadata_csum_seed", path)
    return path


@contextlib.contextmanager
def mounted(source: Path | str, place: Path, *options: str, kind: str = "ext4") -> Iterator[Path]:
    """Mounted while the block runs, and lazily unmounted: what was killed may still be on its way out."""
    place.mkdir(exist_ok=True)
    wanted = ",".join(options if kind != "ext4" else ("loop", *options))
    call("mount", "-t", kind, *(["-o", wanted] if wanted else []), source, place)
    try:
        yield place
    finally:
        call("umount", "--lazy", place)


class Writer:
    """A writer in a forked child, and what it says."""

    def __init__(self, folder: Path, plan: Plan, acked: int = 0, prepare: Callable[[], None] = lambda: None) -> None:
        reading, writing = os.pipe()
        self._acked = acked
        self.child = os.fork()
        if self.child == 0:
            status = 9
            try:
                os.close(reading)
                with Path(os.devnull).open("w", encoding="ascii") as quiet:
                    os.dup2(quiet.fileno(), 2)
                    prepare()
                    status = work(folder, plan, PipedAcks(writing, acked))
            finally:
                os._exit(status)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")
        self._said = b""

    def at_work(self) -> None:
        """Wait until it has acknowledged something, or is over."""
        self._said = self._pipe.read(48)

    def end(self) -> tuple[int, Acks]:
        """Wait for its end: exit status (negative: killed by that signal), and what it had said."""
        said = self._said + self._pipe.read()
        self._pipe.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1]), PipedAcks.heard(said, self._acked)
