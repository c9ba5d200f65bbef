"""Close the files, the page and the channel of a run in forked children of the recording process.

A DataLoader worker that outlived its parent would hold the journal's lock, and the next start would be refused. A
checkpoint may be written while a worker is forked: the worker would keep its file, and the space, after its deletion.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from journal.fork import swept_after_fork

_OPEN: Final = Path("/proc/self/fd")


@contextmanager
def kept_from_children(run_dir: Path, *descriptors: int) -> Iterator[None]:
    """In the block, every forked child closes its files in the run's journal and checkpoints, and these descriptors.

    The run's own folder belongs to them: it is open for a moment whenever a file of the run is opened.
    """
    run = run_dir.resolve()
    # By path: a file that another thread has open at the moment of the fork is recognised too.
    folders = tuple(f"{run / name}/" for name in ("journal", "checkpoints"))
    others = {str(run), *map(_target, descriptors)}

    def is_ours(descriptor: int) -> bool:
        target = _target(descriptor)
        return target in others or f"{target}/".startswith(folders)

    with swept_after_fork(is_ours):
        yield


def _target(descriptor: int) -> str:
    """Return the path of an open file, as the kernel says it. Raises OSError if it is not open."""
    return str((_OPEN / str(descriptor)).readlink())
