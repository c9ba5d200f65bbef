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


def short_path(run: Path, folder: Path) -> Path:
    """Where in the runtime folder `folder` the socket lies of a run whose own folder cannot have it."""
    import hashlib  # here: few commands need it, and it takes as long as all else of this module

    return folder / f"{hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:16]}.sock"


def socket_of(run: Path) -> Path:
    """The socket's path as a client connects to it: the link's target where there is one.

    A run's folder may be unable to hold a socket, or even a link; then the socket is in the runtime folder.
    """
    path = run / SOCKET_NAME
    try:
        if path.is_symlink():
            return path.readlink()
        if path.exists():
            return path
        folder = runtime_folder()
        elsewhere = short_path(run, folder)
        # Anybody can make a folder of this name in /tmp, and a socket in it.
        return elsewhere if elsewhere.exists() and folder.stat().st_uid == os.getuid() else path
    except OSError:
        return path
