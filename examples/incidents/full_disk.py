"""A run whose disk fills up: `python -m examples.incidents.full_disk FOLDER`, in a user namespace, without root.

The disk is four megabytes of memory, which only the processes of the namespace see.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from examples.incidents.making import Making

_SIZE = "4m"
_BLOCKS = (65_536, 4096, 512, 1)


def main(folder: Path) -> None:
    """Make `still`, the run as it stood on the full disk, and `full`, which went on when there was space again."""
    disk = folder / "disk"
    disk.mkdir()
    mount = shutil.which("mount") or "mount"
    subprocess.run([mount, "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(disk)], check=True)
    run = Making(disk, "full", "journal.segment_bytes=65536")
    run.reached(30)
    fill(disk / "ballast")
    run.recorded("RunPaused")
    copied(run.run, folder / "still")
    (disk / "ballast").unlink()
    run.recorded("RunCompleted")
    run.ended()
    copied(run.run, folder / "full")


def fill(ballast: Path) -> None:
    """Use every free byte of the disk."""
    with ballast.open("wb", buffering=0) as file:
        for size in _BLOCKS:
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def copied(run: Path, to: Path) -> None:
    """Copy the files of a run, without its sockets."""
    shutil.copytree(run, to, symlinks=True, ignore=shutil.ignore_patterns("*.sock", "*.lock"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
