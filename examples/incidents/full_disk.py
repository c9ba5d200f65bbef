"""A run whose disk fills up: `python -m examples.incidents.full_disk FOLDER`, in a user namespace, without root.

The disk is 16 megabytes of memory, which only the processes of the namespace see. So much of it is left that the run
can record why it pauses, as a disk that fills within seconds leaves it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from examples.incidents.making import Making

_SIZE = "16m"
_SEGMENT = 1 << 20
# Less than the journal wants to have free, and more than it writes before the daemon looks again.
_LEFT = 3 * _SEGMENT // 2
_BLOCK = bytes(65_536)


def main(folder: Path) -> None:
    """Make `still`, the run as it stood on the full disk, and `full`, which went on when there was space again."""
    disk = folder / "disk"
    disk.mkdir()
    mount = shutil.which("mount") or "mount"
    subprocess.run([mount, "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(disk)], check=True)
    run = Making(disk, "full", f"journal.segment_bytes={_SEGMENT}")
    run.reached(30)
    fill(disk / "ballast")
    run.recorded("RunPaused")
    copied(run.run, folder / "still")
    (disk / "ballast").unlink()
    run.recorded("RunCompleted")
    run.ended()
    copied(run.run, folder / "full")


def fill(ballast: Path) -> None:
    """Use the disk up, but for what is left."""
    with ballast.open("wb", buffering=0) as file:
        while shutil.disk_usage(ballast.parent).free > _LEFT:
            file.write(_BLOCK)


def copied(run: Path, to: Path) -> None:
    """Copy the files of a run, without its sockets."""
    shutil.copytree(run, to, symlinks=True, ignore=shutil.ignore_patterns("*.sock", "*.lock"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
