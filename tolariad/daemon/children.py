"""Close the files, the page and the channel of a run in forked children of the recording process.

A DataLoader worker that outlived its parent would hold the journal's lock, and the next start would be refused. A
checkpoint may be written while a worker is forked: the worker would keep its file, and the space, after its deletion.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from journal.fork import abandon_after_fork, close_descriptors, keep_after_fork

_OPEN: Final = Path("/proc/self/fd")


@contextmanager
def kept_from_children(run_dir: Path, *descriptors: int) -> Iterator[None]:
    """In the block, every forked child closes its files in the run's journal and checkpoints, and these descriptors."""
    own = _Own(
        tuple(str((run_dir / name).resolve()) for name in ("journal", "checkpoints")),
        tuple(_target(one) for one in descriptors),
    )
    abandon_after_fork(own)
    try:
        yield
    finally:
        keep_after_fork(own)


class _Own:
    """What belongs to a run, by path: a file that is opened later is recognised too."""

    def __init__(self, folders: tuple[str, ...], others: tuple[str, ...]) -> None:
        self._folders = tuple(f"{one}/" for one in folders)
        self._others = others

    def abandon_in_child(self) -> None:
        close_descriptors(lambda one: f"{_target(one)}/".startswith(self._folders) or _target(one) in self._others)


def _target(descriptor: int) -> str:
    """Return the path of an open file, as the kernel says it. Raises OSError if it is not open."""
    return str((_OPEN / str(descriptor)).readlink())
