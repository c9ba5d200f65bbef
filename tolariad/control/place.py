"""How the socket gets to its place, and the link by which a run is found by name.

Promises: binding never takes a live daemon's socket away (it is made aside, with its mode, and renamed over; the caller
holds the journal's lock); a path too long for a socket is served by a link; what was passed by the service manager is
neither unlinked nor changed. It must not know: Varlink.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Final

import msgspec

from tolariad.control.where import SOCKET_NAME, runtime_folder, short_path

SOCKET_MODE: Final = 0o660
PATH_BYTES_MAX: Final = 107
BACKLOG: Final = 4096
# What bind, or chmod of a socket, says on file systems that have no sockets.
_NO_SOCKETS_HERE: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EIO, errno.ENXIO, errno.EADDRNOTAVAIL}
)
_NO_LINKS_HERE: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_log: Final = logging.getLogger(__name__)


class PlaceError(OSError):
    """The socket cannot be put where it belongs."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket. `path`: its file; `made`: files to remove at the end, with their inode when they were made."""

    listener: socket.socket
    path: Path
    made: tuple[tuple[Path, int], ...] = ()


def private_folder(path: Path) -> Path:
    """Make `path` ours alone. Raises PlaceError where it is somebody else's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = path.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise PlaceError(f"{path} is not a folder of this user; remove it, or set XDG_RUNTIME_DIR")
    return path


def fits(path: Path) -> bool:
    """Whether a socket can have this path."""
    return len(os.fsencode(path)) <= PATH_BYTES_MAX


def _aside(path: Path) -> Path:
    return path.with_name(f".control.{os.getpid()}")


def bind(run: Path, *, service_folder: Path | None = None) -> Bound:
    """Make the socket of `run` and put it in its place; the journal's lock must be held.

    `service_folder`: the service manager's RuntimeDirectory, where there is one; the run's folder then gets a link. On a
    file system without sockets, as some network and FUSE ones are, the socket lies in the runtime folder.
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
        _log.info("the file system of %s takes no sockets (%s); the control socket is %s", run, error.strerror, path)
        listener = _bind_over(path)
    made = [(path, path.lstat().st_ino)]
    if path != home:
        try:
            link_over(home, path)
        except OSError as error:
            if error.errno not in _NO_LINKS_HERE:
                raise
            # Clients know the same rule for the place: see `where.socket_of`.
            _log.info("%s takes no links either; clients find the socket by the run's path", run)
        else:
            made.append((home, home.lstat().st_ino))
    return Bound(listener=listener, path=path, made=tuple(made))


def adopt(listener: socket.socket, run: Path) -> Bound:
    """A socket that the service manager passed: left as it is, with a link to it in the run's folder."""
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
        # Nobody can connect before `listen`, so the mode is right from the first moment; no umask is touched.
        aside.chmod(SOCKET_MODE)
        listener.listen(BACKLOG)
        aside.replace(path)
    except OSError:
        listener.close()
        aside.unlink(missing_ok=True)
        raise
    return listener


def link_over(link: Path, target: Path) -> None:
    """Make `link` point to `target`, whatever was there, without a moment in which it points nowhere."""
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def remove_made(bound: Bound) -> None:
    """Remove what `bind` made, unless somebody has put their own in its place meanwhile."""
    for path, inode in bound.made:
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ino == inode:
                path.unlink()


def publish(run: Path, name: str) -> Path | None:
    """Leave a link to the run under its name, so that `-r NAME` finds it; None where that place is not to be had.

    A name that another run's link holds gets a piece of the path's hash behind it.
    """
    try:
        folder = private_folder(runtime_folder())
        link = folder / (name.replace("/", "_") or "run")
        if link.is_symlink() and link.exists() and link.resolve() != run.resolve():
            link = folder / f"{link.name}-{short_path(run, folder).stem[:6]}"
        link_over(link, run.resolve())
    except OSError:
        return None  # a convenience: a run without it is found by its folder
    return link


def withdraw(link: Path | None, run: Path) -> None:
    """Remove the link, if it is still ours."""
    if link is not None:
        with contextlib.suppress(OSError):
            if link.resolve() == run.resolve():
                link.unlink()
