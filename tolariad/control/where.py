"""Where a client finds a run's socket and its links. `place` creates them. Quick to load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "control.sock"
SYSTEM_RUNS: Final = Path("/run/tolaria")


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `$XDG_RUNTIME_DIR/tolaria`. If the variable is not set, a folder of this user in the temporary folder."""
    if given := environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / "tolaria"
    # `private_folder` refuses a folder that is not ours.
    return Path(environ.get("TMPDIR") or "/tmp") / f"tolaria-{os.getuid()}"  # noqa: S108


def short_path(run: Path, folder: Path) -> Path:
    """Return the socket's path in the runtime folder `folder`, for a run whose own folder cannot hold a socket."""
    import hashlib  # imported here: few commands need it, and importing it takes as long as the rest of this module

    return folder / f"{hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:16]}.sock"


def socket_of(run: Path) -> Path:
    """Return the path to connect to: the target of the link, if there is a link.

    If the run's folder can hold neither a socket nor a link, the socket is in the runtime folder.
    """
    path = run / SOCKET_NAME
    try:
        if path.is_symlink():
            return path.readlink()
        if path.exists():
            return path
        folder = runtime_folder()
        elsewhere = short_path(run, folder)
        # Any user can create a folder of this name in /tmp, and a socket in it: check the owner.
        return elsewhere if elsewhere.exists() and folder.stat().st_uid == os.getuid() else path
    except OSError:
        return path
