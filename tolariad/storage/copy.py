"""A committed checkpoint, copied out of its run: verified before, synced after, under its name only when it is whole.

It must not know: which checkpoint is meant, or what is done with the copy.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from tolariad import run_files
from tolariad.storage.manifest import FILE_NAME
from tolariad.storage.remove import held
from tolariad.storage.verify import verify
from tolariad.storage.write import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

_COPY_BYTES: Final = 1 << 20


def copy_checkpoint(folder: Path, manifest: str, target: Path) -> None:
    """Copy `folder` to the new folder `target`; `manifest` is the BLAKE3 of its manifest.

    Raises CheckpointUnusable where the original does not verify, FileExistsError where `target` is there, OSError.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists already; a checkpoint is copied to a folder that does not")
    with held(folder):
        _copy(folder, manifest, target)


def _copy(folder: Path, manifest: str, target: Path) -> None:
    verified = verify(folder, manifest)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.mkdir()
        for name in (FILE_NAME, *(piece.name for piece in verified.pieces)):
            source = run_files.open_file(folder.parent, f"{folder.name}/{name}", os.O_RDONLY)
            with os.fdopen(source, "rb") as original, (partial / name).open("xb") as copied:
                shutil.copyfileobj(original, copied, _COPY_BYTES)
                copied.flush()
                os.fsync(copied.fileno())
        sync_folder(partial)
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
