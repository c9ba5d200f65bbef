"""Where a run's socket and its links are looked for; what a client needs of it, quick to load.

It must not know: how they come to be there (`place`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "control.sock"
SYSTEM_RUNS: Final = Path("/run/tolaria")


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_RUNTIME_DIR/tolaria`, or one of our own below the temporary folder where there is no such variable."""
    given = environ.get("XDG_RUNTIME_DIR")
    return Path(given) / "tolaria" if given else Path(environ.get("TMPDIR") or "/tmp") / f"tolaria-{os.getuid()}"  # noqa: S108 -- `private_folder` refuses one that is not ours


def socket_of(run: Path) -> Path:
    """The socket's path as a client connects to it: the link's target where there is one."""
    path = run / SOCKET_NAME
    try:
        return path.readlink() if path.is_symlink() else path
    except OSError:
        return path
