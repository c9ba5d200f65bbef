"""The link `checkpoints/latest`, for programs that want the newest checkpoint and read no journal.

Promises: at no moment is the old link gone and the new one not there. A file or folder of that name is the user's, and
stays. The link is relative, so a copy of the run has its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tolariad.storage.manifest import check_id

LATEST: Final = "latest"


def name_newest(root: Path, checkpoint_id: str) -> None:
    """Let the link in `root` lead to this checkpoint. Raises OSError."""
    check_id(checkpoint_id)
    link, aside = root / LATEST, root / f".{LATEST}.{os.getpid()}"
    if link.is_symlink():
        if str(link.readlink()) == checkpoint_id:
            return
    elif link.exists():
        raise FileExistsError(None, "something else has that name", str(link))
    aside.unlink(missing_ok=True)
    aside.symlink_to(checkpoint_id)
    aside.replace(link)
