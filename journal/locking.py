"""One writer: an flock on the file `lock` in the journal's folder, and one on the folder itself.

Both are released when the process ends, however it ends. The file is the visible lock. A user may remove it to get rid of
the lock. The next writer would then create and lock a new file, and two writers would write into one segment. The folder
cannot be removed while it contains a journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from journal.errors import JournalLocked
from journal.files import Files

LOCK_NAME: Final = "lock"


def take_locks(files: Files, folder: Path, hint: str) -> Sequence[int]:
    """Lock the journal in `folder`. Return the descriptors of the locks. Raises JournalLocked with `hint`, OSError."""
    held: list[int] = []
    try:
        held.append(files.lock(folder / LOCK_NAME))
        held.append(files.lock(folder))  # safety: folder-is-locked
    except BlockingIOError as error:
        release_locks(files, held)  # safety: one-lock-of-two-released
        raise JournalLocked("another process writes this journal", path=folder, hint=hint) from error
    except OSError:
        # Some network file systems cannot lock folders. The file's lock is then the only one.
        if not held:
            raise
    return held


def release_locks(files: Files, held: Sequence[int]) -> None:
    """Release the locks, the file's last: a process that waits for it then finds the folder free."""
    for descriptor in reversed(held):
        files.close(descriptor)
