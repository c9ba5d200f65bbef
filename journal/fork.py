"""Protection against forks: an open journal belongs to the process that opened it.

A forked child inherits the descriptors, and with them the lock and the segment. It would hold the lock after its parent
has died, and could write into its parent's journal. So every open journal is closed in every child.

Other things that a child must let go of, such as a socket, are registered here too. There is one hook for the whole
process, because Python cannot unregister one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol


class Abandons(Protocol):
    """An object that can release, in a forked child, what belongs to the parent."""

    def abandon_in_child(self) -> None:
        """Close every descriptor and write nothing. Refuse every call from now on."""


# Weak references: registering a journal must not keep it open.
_OPEN: Final[weakref.WeakSet[Abandons]] = weakref.WeakSet()
_SWEPT: Final[list[Callable[[int], bool]]] = []
_DESCRIPTORS: Final = Path("/proc/self/fd")


def abandon_after_fork(opened: Abandons) -> None:
    """Call `opened.abandon_in_child()` in every child forked from now on."""
    _OPEN.add(opened)


@contextmanager
def swept_after_fork(is_ours: Callable[[int], bool]) -> Iterator[None]:
    """In the block, every forked child closes the descriptors for which `is_ours` returns true.

    After the registered objects have closed theirs: none of them may find its own closed already.
    """
    _SWEPT.append(is_ours)
    try:
        yield
    finally:
        _SWEPT.remove(is_ours)


def close_descriptors(is_ours: Callable[[int], bool]) -> None:
    """Close every descriptor of this process for which `is_ours` returns true. One that it cannot look at is left."""
    for entry in tuple(_DESCRIPTORS.iterdir()):
        # One of them was of the directory listing itself, which is closed by now.
        with suppress(OSError):
            if is_ours(int(entry.name)):
                os.close(int(entry.name))


def _in_child() -> None:
    # A copy of the set: closing may drop the last reference and change it.
    for opened in list(_OPEN):
        opened.abandon_in_child()
    for is_ours in _SWEPT:
        close_descriptors(is_ours)


os.register_at_fork(after_in_child=_in_child)  # safety: forked-child-lets-go
