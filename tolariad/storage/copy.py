"""Copy a committed checkpoint out of its run.

The original is verified before the copy. The copy is synced and gets its name only when it is complete.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tolariad import run_files
from tolariad.storage.manifest import FILE_NAME
from tolariad.storage.remove import held
from tolariad.storage.verify import verify
from tolariad.storage.write import sync_folder

_COPY_BYTES: Final = 1 << 20


def copy_checkpoint(folder: Path, manifest: str, target: Path) -> None:
    """Copy `folder` to the new folder `target`. `manifest` is the BLAKE3 of the checkpoint's manifest.

    Raises CheckpointUnusable if the original does not verify, FileExistsError if `target` exists, OSError.
    """
    if target.exists():
        raise FileExistsError(f"{target} already exists. Name a folder that does not exist; the copy creates it.")
    partial = target.with_name(f".{target.name}.partial")
    with ExitStack() as stack:
        # The lock keeps the daemon's retention from removing the checkpoint during the copy.
        stack.enter_context(held(folder))
        verified = verify(folder, manifest)
        shutil.rmtree(partial, ignore_errors=True)
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        partial.mkdir(parents=True)
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
