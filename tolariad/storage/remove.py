"""Remove checkpoints, except those that a process is reading.

A folder is renamed first and removed afterwards, so a half removed folder never looks like a checkpoint. A process that
reads a checkpoint holds a shared lock on its folder, and a locked checkpoint is not removed. The caller decides which
checkpoints to remove (`core/queries/checkpoints.py`).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from tolariad import run_files
from tolariad.core.calc.pruning.files import FOLDER as IMPORTANCE
from tolariad.core.calc.pruning.files import cycle_of
from tolariad.failpoints import reached
from tolariad.storage.manifest import check_id
from tolariad.storage.write import sync_folder

_OURS: Final = re.compile(r"^\.?c(\d{6,})(\.partial|\.removed)?$")


class InUse(Exception):
    """Another process is reading this checkpoint."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep the checkpoint in `folder` from being removed inside the `with` block. A missing folder is not an error."""
    with ExitStack() as stack:
        # If the lock cannot be taken, continue: the read that follows fails with the name of the file.
        with suppress(OSError):
            descriptor = run_files.open_folder(folder.parent, folder.name)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def remove(root: Path, checkpoint_id: str) -> int:
    """Remove checkpoint `checkpoint_id` and return the number of bytes freed. A missing one is not an error.

    Raises InUse if a process reads the checkpoint, and OSError.
    """
    check_id(checkpoint_id)
    folder = root / checkpoint_id
    aside = root / f".{checkpoint_id}.removed"
    # A crash of an earlier removal may have left this folder.
    freed = _remove_tree(aside)
    if folder.is_symlink():
        freed += _remove_tree(folder)
        sync_folder(root)
        return freed
    if not folder.exists():
        return freed
    descriptor = run_files.open_folder(root, checkpoint_id)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"checkpoint {checkpoint_id} is being read") from None
        # Make the rename durable before any file goes: a power cut must not bring the final name back with files
        # missing.
        folder.rename(aside)
        sync_folder(root)
    finally:
        os.close(descriptor)
    reached("removal")
    return freed + _remove_tree(aside)


def _remove_tree(folder: Path) -> int:
    if folder.is_symlink():
        # The user moved the folder elsewhere and left a link. Remove only the link.
        folder.unlink()
        return 0
    if not folder.is_dir():
        return 0
    freed = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            freed += path.stat().st_size
    shutil.rmtree(folder, onerror=_unless_gone)
    return freed


def _unless_gone(_: object, __: str, caught: tuple[type[BaseException], BaseException, TracebackType]) -> None:
    """Raise what was caught, unless somebody else has removed it: a new trainer removes half-written folders, too."""
    if not isinstance(caught[1], FileNotFoundError):
        raise caught[1]


def sweep(root: Path, committed: Collection[str], highest: int) -> list[str]:
    """Remove folders that belong to no checkpoint and return their names. Raises OSError.

    Such a folder is half written, half removed, or complete but never committed. Only folders with the name of a
    checkpoint are removed, and only up to number `highest`: a trainer may be writing a newer one.
    """
    removed = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        found = _OURS.match(path.name)
        if found and int(found[1]) <= highest and path.is_dir() and path.name not in committed:
            _remove_tree(path)
            removed.append(path.name)
    return removed


def unnamed_importance(run: Path, kept: Collection[str], highest: int) -> list[str]:
    """Return the files of importance of cycles up to `highest` that are not `kept`, relative to the run's folder."""
    found = [(path.name, cycle_of(path.name)) for path in sorted((run / IMPORTANCE).glob("p*"))]
    names = [f"{IMPORTANCE}/{name}" for name, cycle in found if cycle is not None and cycle <= highest]
    return [name for name in names if name not in kept]
