"""Whom a client trusts: the owner of the folder and of the socket, and the process that serves it.

Any user may create a folder in /tmp, and a socket in it, before its rightful owner does. Promises: a client sends
nothing to a server of a user other than root, this user, and the run's owner. Another user counts as the owner of a run
only if nobody but root or this user can have put its folder there. Examples are that user's home, and the folders of
the system's service.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tolariad.control import where

_CRED: Final = struct.Struct("3i")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class NotReachable(Exception):
    """No daemon answers at the socket, or the connection was lost."""


class NotTrusted(NotReachable):
    """Somebody else may answer at the socket, or answers for another run. The text says who, and what to do."""


def servers_of(folder: Path) -> frozenset[int]:
    """Return the ids of the users whose processes may serve a socket of this folder. Raises NotTrusted, OSError."""
    real, own = folder.resolve(strict=True), os.getuid()
    found = real.stat()
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise NotTrusted(f"everybody may write to {real}, so anybody may answer there; to go on: chmod o-w {real}")
    if found.st_uid not in (0, own) and not _is_appointed(real, found.st_uid, own):
        raise NotTrusted(
            f"{real} belongs to user {found.st_uid}, and this is user {own}; nothing is sent there. Give the command "
            f"as user {found.st_uid}, or name another run"
        )
    return frozenset({0, own, found.st_uid})


def _is_appointed(folder: Path, owner: int, own: int) -> bool:
    """Return whether only root, or this user, can have put a folder of `owner` at this place."""
    if own == 0:
        # Root can ask every user's process, and owns the folders above most of them. Of others it trusts the service.
        return folder.parent in where.SYSTEM_FOLDERS and _is_unshared(folder.parent, (0,))
    above = next((path for path in folder.parents if path.stat().st_uid != owner), None)
    # In a container the owner of the root folder may have another number than 0.
    return above is not None and _is_unshared(above, (0, own, Path("/").stat().st_uid))


def _is_unshared(folder: Path, owners: Collection[int]) -> bool:
    found = folder.stat()
    return found.st_uid in owners and not found.st_mode & _OTHERS_WRITE


def check_socket(path: Path, servers: Collection[int]) -> None:
    """Raise NotTrusted unless the socket, and the folder that it lies in, belong to one of these users; OSError."""
    for one in (path.parent, path):
        owner = one.stat().st_uid
        if owner not in servers:
            raise NotTrusted(f"{one} belongs to user {owner}, not to the run's owner; nothing is sent there")


def check_peer(connected: socket.socket, path: Path, servers: Collection[int]) -> None:
    """Raise NotTrusted unless one of these users listens at the other end: the file may have been replaced."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return  # no Linux: such systems only read runs
    _, uid, _ = _CRED.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CRED.size))
    if uid not in servers:
        raise NotTrusted(f"a process of user {uid} serves {path}, not one of the run's owner; nothing is sent to it")
