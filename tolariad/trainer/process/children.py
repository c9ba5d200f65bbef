"""Close the journal, the page and the channel of a run in forked children of the recording process.

A DataLoader worker that outlived its parent would hold the journal's lock, and the next start would be refused. There
is one hook for the whole process, because Python cannot unregister one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN: Final = Path("/proc/self/fd")
# While a run is recorded: the prefixes of paths in /proc/self/fd whose descriptors a child closes.
_own: Final[list[str]] = []
_hooked: Final[list[bool]] = []


@contextmanager
def kept_from_children(journal: Path, *descriptors: int) -> Iterator[None]:
    """In the block, every forked child closes all files in the folder `journal`, and these descriptors."""
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
            # The descriptor of the directory listing itself, which is closed by now.
            continue
