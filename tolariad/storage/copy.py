"""Copy a committed checkpoint out of its run.

The original is verified before the copy. The copy is synced and gets its name only when it is complete.
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
    """Copy `folder` to the new folder `target`. `manifest` is the BLAKE3 of the checkpoint's manifest.

    Raises CheckpointUnusable if the original does not verify, FileExistsError if `target` exists, OSError.
    """
    if target.exists():
        raise FileExistsError(f"{target} already exists. Name a folder that does not exist; the copy creates it.")
    # The lock keeps the daemon's retention from removing the checkpoint during the copy.
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
        # Sync the files, then their names, then rename: after a power cut the final name leads to a complete copy or
        # does not exist.
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
