"""Taking checkpoints away, and keeping hands off those that somebody reads.

A folder is renamed first and removed then, so what is half removed never looks like a checkpoint. Whoever reads one holds a
shared lock on its folder; one that is held is not removed. It must not know: which ones are to go, or why.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tolariad import run_files
from tolariad.failpoints import reached
from tolariad.storage.manifest import group_of
from tolariad.storage.write import check_id, sync_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_OURS: Final = re.compile(r"^\.?c(\d{6,})(\.partial|\.removed)?$")


class InUse(Exception):
    """Another process reads this checkpoint."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep the checkpoint in `folder` from being removed. One that is not there is nobody's to remove."""
    with ExitStack() as stack:
        # Where this fails, whoever reads will say what is wrong, with the name of the file.
        with suppress(OSError):
            descriptor = run_files.open_folder(folder.parent, folder.name)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def remove(root: Path, checkpoint_id: str, keep_groups: Collection[str] = ()) -> int:
    """Remove checkpoint `checkpoint_id`; the bytes that became free. Files of `keep_groups` stay, and the manifest then.

    One that is gone already is no error. Raises InUse where somebody reads it, and OSError.
    """
    check_id(checkpoint_id)
    folder = root / checkpoint_id
    aside = root / f".{checkpoint_id}.removed"
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
        if keep_groups:
            return freed + _remove_files(folder, keep_groups)
        folder.rename(aside)
        sync_folder(root)
    finally:
        os.close(descriptor)
    reached("removal")
    return freed + _remove_tree(aside)


def _remove_files(folder: Path, keep_groups: Collection[str]) -> int:
    freed = 0
    for path in sorted(folder.iterdir()):
        if path.name != "manifest.json" and group_of(path.name) not in keep_groups:
            freed += path.stat().st_size
            path.unlink()
            reached("removal")
    sync_folder(folder)
    return freed


def _remove_tree(folder: Path) -> int:
    if folder.is_symlink():
        # What somebody has moved elsewhere is theirs; the name goes.
        folder.unlink()
        return 0
    if not folder.is_dir():
        return 0
    freed = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return freed


def sweep(root: Path, committed: Collection[str], highest: int) -> list[str]:
    """Remove what is nobody's: half written, half removed, or complete and never committed; the names removed.

    Only of checkpoints numbered up to `highest`, and only folders named as ours are. Raises OSError.
    """
    removed = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        found = _OURS.match(path.name)
        if found and int(found[1]) <= highest and path.is_dir() and path.name not in committed:
            _remove_tree(path)
            removed.append(path.name)
    return removed
