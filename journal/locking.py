"""One writer: an flock on the file `lock` in the journal's folder, and one on the folder itself.

Both go when their process goes, however it goes. The file is what people see; but whoever removes it, to get rid of the
lock, would get a new file with a lock of its own, and two writers in one segment. The folder cannot be removed while
there is a journal in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from journal.errors import JournalLocked
from journal.files import Files

LOCK_NAME: Final = "lock"


def take_locks(files: Files, folder: Path, hint: str) -> Sequence[int]:
    """The descriptors that hold the locks of the journal in `folder`. Raises JournalLocked with `hint`, OSError."""
    held: list[int] = []
    try:
        held.append(files.lock(folder / LOCK_NAME))
        held.append(files.lock(folder))
    except BlockingIOError as error:
        release_locks(files, held)
        raise JournalLocked("another process writes this journal", path=folder, hint=hint) from error
    except OSError:
        # Some network file systems lock no folders; the file's lock is then all there is.
        if not held:
            raise
    return held


def release_locks(files: Files, held: Sequence[int]) -> None:
    """Let go of them, the file's last: who waits for it finds the folder free."""
    for descriptor in reversed(held):
        files.close(descriptor)
