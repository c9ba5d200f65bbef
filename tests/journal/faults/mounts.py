"""File systems for tests: an ext4 in a file and a small tmpfs. They need root; without it the tests are skipped."""

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
    """Return why nothing can be mounted here, or an empty text."""
    if os.geteuid() != 0:
        return "mounting takes root"
    missing = [tool for tool in ("mount", "umount", "losetup", "mkfs.ext4") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"mounts are not allowed here: {tried.stderr.strip()[:100]}"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def call(*command: str | Path) -> str:
    """Run a tool of the system and return its output. Raises CalledProcessError."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def ext4_image(path: Path, size: int, *options: str) -> Path:
    """Return an empty ext4 in a sparse file; `options` are those of mkfs."""
    with path.open("wb") as file:
        file.truncate(size)
    call("mkfs.ext4", "-q", "-F", "-O", "^metadata_csum_seed", *options, path)
    return path


@contextlib.contextmanager
def paged_loop(image: Path) -> Iterator[Path]:
    """Return a block device over a file that is written one page at a time, so that it never reports too much.

    Linux' loop driver takes a short write to its file for a complete one (seen with 6.18). 128 KiB are written with
    O_DIRECT and O_DSYNC over a tmpfs with room for 64. Only half is there afterwards, but the call has returned 131072.
    No journal can work with such a disk. A tmpfs takes a whole page or none.
    """
    device = Path(call("losetup", "--find", "--show", image).strip())
    try:
        (Path("/sys/class/block") / device.name / "queue" / "max_sectors_kb").write_text("4")
        yield device
    finally:
        call("losetup", "--detach", device)


@contextlib.contextmanager
def mounted(source: Path | str, place: Path, *options: str, kind: str = "ext4") -> Iterator[Path]:
    """Mount while the block runs, and unmount lazily: a killed process may still be ending."""
    place.mkdir(exist_ok=True)
    wanted = ",".join(("loop", *options) if Path(source).is_file() else options)
    call("mount", "-t", kind, *(["-o", wanted] if wanted else []), source, place)
    try:
        yield place
    finally:
        call("umount", "--lazy", place)


class Writer:
    """A writer in a forked child, and what it reported."""

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
        """Wait until it has acknowledged an event, or has ended."""
        self._said = self._pipe.read(48)

    def end(self) -> tuple[int, Acks]:
        """Wait for its end. Return the exit status (negative: killed by that signal) and its reports."""
        said = self._said + self._pipe.read()
        self._pipe.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1]), PipedAcks.heard(said, self._acked)
