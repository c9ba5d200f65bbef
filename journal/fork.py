"""What a fork must not share: an open journal belongs to the process that opened it.

A forked child inherits the descriptors, and with them the lock and the segment. Left alone it would keep the lock after
its parent has died, and could write into its parent's journal. So every open journal is abandoned in every child.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Abandons(Protocol):
    """Something that can let go of what is its parent's."""

    def abandon_in_child(self) -> None:
        """Close every descriptor, write nothing, refuse everything from now on."""


_OPEN: Final[weakref.WeakSet[Abandons]] = weakref.WeakSet()


def abandon_after_fork(opened: Abandons) -> None:
    """From now on, let go of `opened` in every forked child."""
    _OPEN.add(opened)


def _in_child() -> None:
    for opened in list(_OPEN):
        opened.abandon_in_child()


os.register_at_fork(after_in_child=_in_child)
