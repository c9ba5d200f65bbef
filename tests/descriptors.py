"""The open descriptors of this process: what a call leaves open is what was not there before it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def opened() -> set[tuple[str, str]]:
    """Return each descriptor by its number, and what it is of.

    Compare by `opened() - before`: one of an object that another test has left may be closed in the meantime.
    """
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        # The one by which the folder is listed is gone here.
        with contextlib.suppress(OSError):
            found.add((path.name, str(path.readlink())))
    return found
