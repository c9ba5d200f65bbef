"""What a forked child of a process that records must not keep: the journal, the page and the channel of the run.

A DataLoader worker that outlived its parent would hold the journal's lock, and the next start would be refused. One hook
serves the whole process, since Python cannot take one back. It must not know: what the files are for.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN: Final = Path("/proc/self/fd")
# Beginnings of what /proc/self/fd says of a descriptor that a child closes, while something records.
_own: Final[list[str]] = []
_hooked: Final[list[bool]] = []


@contextmanager
def kept_from_children(journal: Path, *descriptors: int) -> Iterator[None]:
    """Within the block a forked child closes everything open in the folder `journal`, and these descriptors."""
    if not _hooked:
        os.register_at_fork(after_in_child=_close_own)
        _hooked.append(True)
    added = [f"{journal.resolve()}/", *(str((_OPEN / str(one)).readlink()) for one in descriptors)]
    _own.extend(added)
    try:
        yield
    finally:
        for one in added:
            _own.remove(one)


def _close_own() -> None:
    if not _own:
        return
    beginnings = tuple(_own)
    for entry in tuple(_OPEN.iterdir()):
        try:
            if str(entry.readlink()).startswith(beginnings):
                os.close(int(entry.name))
        except OSError:
            # The descriptor of the listing itself, which is closed by now.
            continue
