"""A committed checkpoint, copied out of its run: verified before, synced after, under its name only when it is whole.

It must not know: which checkpoint is meant, or what is done with the copy.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tolariad.storage.remove import held
from tolariad.storage.verify import verify
from tolariad.storage.write import sync_folder

if TYPE_CHECKING:
    from pathlib import Path


def copy_checkpoint(folder: Path, manifest: str, target: Path) -> None:
    """Copy `folder` to the new folder `target`; `manifest` is the BLAKE3 of its manifest.

    Raises CheckpointUnusable where the original does not verify, FileExistsError where `target` is there, OSError.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists already; a checkpoint is copied to a folder that does not")
    with held(folder):
        _copy(folder, manifest, target)


def _copy(folder: Path, manifest: str, target: Path) -> None:
    verify(folder, manifest)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(folder, partial)
        for path in partial.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(partial)
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
