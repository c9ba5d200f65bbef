"""Where a client finds a run's socket and its links. `place` creates them, `trust` checks owners. Quick to load."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "control.sock"
SYSTEM_RUNS: Final = Path("/run/tolaria")
SYSTEM_STATE: Final = Path("/var/lib/tolariad")
# Folders of root, in which the service's runs have folders of their own user.
SYSTEM_FOLDERS: Final = (SYSTEM_RUNS, SYSTEM_STATE)


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `$XDG_RUNTIME_DIR/tolaria`. If the variable is not set, a folder of this user in the temporary folder."""
    if given := environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / "tolaria"
    # `why_not_private` says whether it is ours.
    return Path(environ.get("TMPDIR") or "/tmp") / f"tolaria-{os.getuid()}"  # noqa: S108


def why_not_private(folder: Path) -> str:
    """Return why a runtime folder is not used, and what to do; "" if it is this user's alone. Raises OSError.

    Any user can create a folder of its name in /tmp.
    """
    found, own = folder.lstat(), os.getuid()
    hint = "remove it, or set XDG_RUNTIME_DIR"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder; {hint}"
    if found.st_uid != own:
        return f"{folder} belongs to user {found.st_uid}, and this is user {own}; {hint}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {folder}; to go on: chmod go-w {folder}"
    return ""


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
            return run / path.readlink()
        if path.exists():
            return path
        folder = runtime_folder()
        elsewhere = short_path(run, folder)
        return elsewhere if elsewhere.exists() and not why_not_private(folder) else path
    except OSError:
        return path
