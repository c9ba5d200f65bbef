"""Facts about this boot and the locks of the machine, read from /proc. Light: commands that only read import it."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the random id of this boot, in hexadecimal."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def is_locked(path: Path) -> bool | None:
    """Return whether a process of this machine holds an flock on a file or folder; None if that cannot be found out."""
    try:
        inode, locks = path.stat().st_ino, Path("/proc/locks").read_text()
    except OSError:
        return None
    # The fields are: number, FLOCK, ADVISORY, WRITE, pid, MAJOR:MINOR:INODE, range. The device's number differs from
    # that of `stat` on some file systems.
    fields = (line.split() for line in locks.splitlines())
    return any(one[1] == "FLOCK" and one[5].rpartition(":")[2] == str(inode) for one in fields if len(one) > 5)
