"""What a run has put on the objects of a user's program is taken off them when it ends, however it ends.

A trainer process ends with its run, so there nothing is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

# Only one run may be active in a process.
_open: Final[list[ExitStack]] = []


def at_end(release: Callable[[], None]) -> None:
    """Call `release` at the end of the block of `released` in progress, if there is one; the last one first."""
    if _open:
        _open[-1].callback(release)


@contextmanager
def released() -> Iterator[None]:
    """Call at the end of the block what was given to `at_end` in it, also after an exception."""
    with ExitStack() as stack:
        _open.append(stack)
        try:
            yield
        finally:
            _open.remove(stack)
