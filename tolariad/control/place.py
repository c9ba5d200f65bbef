"""Create the control socket, and the link by which a run is found by name.

Promises: binding never removes a live daemon's socket: the caller holds the journal's lock, and the new socket is made
under another name and renamed. If the path is too long for a socket, a link leads to it. A socket that the service
manager passed is neither unlinked nor changed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from tolariad.control.where import SOCKET_NAME, runtime_folder, short_path, why_not_private

SOCKET_MODE: Final = 0o660
PATH_BYTES_MAX: Final = 107
BACKLOG: Final = 4096
# The errors of bind and chmod on file systems without sockets.
_NO_SOCKETS_HERE: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EIO, errno.ENXIO, errno.EADDRNOTAVAIL}
)
_NO_LINKS_HERE: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_log: Final = logging.getLogger(__name__)


class PlaceError(OSError):
    """The socket cannot be created at its place."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket. `path` is its file; `made` are the files to remove at the end, with their inodes."""

    listener: socket.socket
    path: Path
    made: tuple[tuple[Path, int], ...] = ()


def private_folder(path: Path) -> Path:
    """Create the folder for this user only. Raises PlaceError if another user owns it or may write to it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why := why_not_private(path):
        raise PlaceError(why)
    return path


def fits(path: Path) -> bool:
    """Return whether the path is short enough for a socket."""
    return len(os.fsencode(path)) <= PATH_BYTES_MAX


def _aside(path: Path) -> Path:
    return path.with_name(f".control.{os.getpid()}")


def bind(run: Path, *, service_folder: Path | None = None) -> Bound:
    """Create the control socket of `run`. The caller must hold the journal's lock.

    `service_folder` is the service manager's RuntimeDirectory, if there is one; the run's folder then gets a link. On a
    file system without sockets (some network and FUSE file systems), the socket is in the runtime folder.
    Raises OSError.
    """
    home = run / SOCKET_NAME
    path = service_folder / SOCKET_NAME if service_folder else home
    if not fits(path) or not fits(_aside(path)):
        path = short_path(run, private_folder(runtime_folder()))
    try:
        listener = _bind_over(path)
    except OSError as error:
        if service_folder or error.errno not in _NO_SOCKETS_HERE:
            raise
        path = short_path(run, private_folder(runtime_folder()))
        _log.info("The file system of %s has no sockets (%s); the control socket is %s", run, error.strerror, path)
        listener = _bind_over(path)
    made = [(path, path.lstat().st_ino)]
    if path != home:
        try:
            link_over(home, path)
        except OSError as error:
            if error.errno not in _NO_LINKS_HERE:
                raise
            # Clients compute the same path: see `where.socket_of`.
            _log.info("%s has no links either; clients find the socket by the run's path", run)
        else:
            made.append((home, home.lstat().st_ino))
    return Bound(listener=listener, path=path, made=tuple(made))


def adopt(listener: socket.socket, run: Path) -> Bound:
    """Use a socket that the service manager passed. It is not changed; the run's folder gets a link to it."""
    path = Path(str(listener.getsockname()))
    home = run / SOCKET_NAME
    if path in (home, home.resolve()) or not path.is_absolute():
        return Bound(listener=listener, path=path)
    link_over(home, path)
    return Bound(listener=listener, path=path, made=((home, home.lstat().st_ino),))


def _bind_over(path: Path) -> socket.socket:
    aside = _aside(path)
    aside.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(aside))
        # No client can connect before `listen`, so the mode is right from the start without changing the umask.
        aside.chmod(SOCKET_MODE)
        listener.listen(BACKLOG)
        aside.replace(path)
    except OSError:
        listener.close()
        aside.unlink(missing_ok=True)
        raise
    return listener


def link_over(link: Path, target: Path) -> None:
    """Make `link` point to `target`, atomically: at no moment is the old link gone and the new one not there."""
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def remove_made(bound: Bound) -> None:
    """Remove the files that `bind` made, unless another process has replaced them."""
    for path, inode in bound.made:
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ino == inode:
                path.unlink()


def publish(run: Path, name: str) -> Path | None:
    """Create a link to the run under its name, so that `-r NAME` finds it. Return None if that is not possible.

    If another run's link has the name, append a part of the path's hash.
    """
    try:
        folder = private_folder(runtime_folder())
        link = folder / (name.replace("/", "_") or "run")
        if link.is_symlink() and link.exists() and link.resolve() != run.resolve():
            link = folder / f"{link.name}-{short_path(run, folder).stem[:6]}"
        link_over(link, run.resolve())
    except OSError:
        return None  # not an error: a run without a link is found by its folder
    return link


def withdraw(link: Path | None, run: Path) -> None:
    """Remove the link if it still points to `run`."""
    if link is not None:
        with contextlib.suppress(OSError):
            if link.resolve() == run.resolve():
                link.unlink()
