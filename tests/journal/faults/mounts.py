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
    missing = [tool for tool in ("mount", "umount", "losetup", "mkfs.ext4") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"mounts are not allowed here: {tried.stderr.strip()[:100]}"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def call(*command: str | Path) -> str:
    """Run one tool of the system, and return what it printed. Raises CalledProcessError with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def ext4_image(path: Path, size: int, *options: str) -> Path:
    """An empty ext4 in a file, sparse; `options` are those of mkfs."""
    with path.open("wb") as file:
        file.truncate(size)
    call("mkfs.ext4", "-q", "-F", "-O", "^metadata_csum_seed", *options, path)
    return path


@contextlib.contextmanager
def paged_loop(image: Path) -> Iterator[Path]:
    """A block device over a file, which is written to a page at a time, so that what it reports as done is done.

    Left to itself Linux' loop driver takes a short write to its file for a whole one (seen with 6.18): of 128 KiB, written
    with O_DIRECT and O_DSYNC over a tmpfs with room for 64, half is there afterwards, and the call has returned 131072. No
    journal can answer for such a disk. A tmpfs takes a page whole or not at all.
    """
    device = Path(call("losetup", "--find", "--show", image).strip())
    try:
        (Path("/sys/class/block") / device.name / "queue" / "max_sectors_kb").write_text("4")
        yield device
    finally:
        call("losetup", "--detach", device)


@contextlib.contextmanager
def mounted(source: Path | str, place: Path, *options: str, kind: str = "ext4") -> Iterator[Path]:
    """Mounted while the block runs, and lazily unmounted: what was killed may still be on its way out."""
    place.mkdir(exist_ok=True)
    wanted = ",".join(("loop", *options) if Path(source).is_file() else options)
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
