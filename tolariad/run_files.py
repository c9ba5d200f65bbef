"""Open and create the files of a run. All packages use this module, so that one set of rules holds for all files.

Promises: no symbolic link below the run's folder is followed, at any depth. Only regular files are opened, and opening
never waits (a FIFO would). A file that is written belongs to root or to this user. New files have mode 0640 and new
folders 0750, whatever the umask. The journal has the same rules for its own files in `journal/files.py`.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
# The folders of a run, and its files that some process opens for writing.
_FOLDERS: Final = ("journal", "checkpoints", "logs", "exports", "importance")
_FILES: Final = ("config.yaml", "config.resolved.json", "trainer.lock")
_LOGS: Final = ("logs/trainer.log", "logs/trainer.log.1", "logs/trainer.stacks")
# O_PATH needs no permission to list the folder. Systems other than Linux have no O_PATH; they only read runs.
_WAY: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK changes nothing for a regular file. It makes the open of a FIFO return at once instead of blocking.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class UnsafeFile(OSError):
    """A name in a run's folder leads to a link, a device or the like, or its file belongs to another user."""


class HeldFolder:
    """A folder held open while a run is live, to notice that its path does not lead to it any more.

    The descriptor keeps the inode in existence, so no other folder can get its number.
    """

    def __init__(self, path: Path) -> None:
        """Open the existing folder. Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, _WAY)

    def fate(self) -> str:
        """Return what happened to the folder, as words after its name; "" if its path still leads to it."""
        try:
            if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                return ""
        except OSError as error:
            # Any other error says nothing about the folder, such as a parent that may not be searched for a moment.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
                return ""
        place = self.place()
        return f"was moved to {place}" if place is not None else "was deleted or moved to another disk"

    def place(self) -> Path | None:
        """Return the folder's present path, or None if it was deleted."""
        try:
            found = Path(f"/proc/self/fd/{self._descriptor}").readlink()
            # A deleted folder has its old path with a word after it; no folder is there.
            is_there = os.path.samestat(found.stat(), os.fstat(self._descriptor))
        except OSError:
            return None
        return found if is_there else None

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class UnsafeFolder(Exception):
    """A user other than root and this one can write to a run's folder. The text says who, and what to do."""


def open_file(folder: Path, name: str, flags: int) -> int:
    """Open the regular file `name`, a path relative to the run's `folder`. Return a descriptor.

    `flags` are those of os.open, without O_TRUNC: truncate the descriptor, after this function has checked the file.
    Raises UnsafeFile if `name` is not a regular file of this run, and OSError.
    """
    *above, last = name.split("/")
    if not {"", ".", ".."}.isdisjoint((*above, last)):
        raise UnsafeFile(errno.EINVAL, "is not the name of a file in the run's folder", name)
    parent = _descend(folder, above)
    try:
        descriptor = _open_or_create(parent, last, flags | _PLAIN)
    except OSError as error:
        raise _explained(error, parent, last, folder / name) from error
    finally:
        os.close(parent)
    try:
        _require_plain(os.fstat(descriptor), folder / name, flags)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def way_to(folder: Path) -> int:
    """Open the run's own folder as a way to what is in it. Return a descriptor. Raises OSError."""
    return os.open(folder, _WAY)


def open_folder(folder: Path, name: str) -> int:
    """Open the folder `name` in `folder`, to lock or sync it. Return a descriptor. Raises as `open_file`."""
    parent = _descend(folder, [])
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        raise _explained(error, parent, name, folder / name) from error
    finally:
        os.close(parent)


def read_file(folder: Path, name: str, bytes_max: int) -> bytes:
    """Return the content of the file. Raises UnsafeFile if it has more than `bytes_max` bytes, and as `open_file`."""
    with os.fdopen(open_file(folder, name, os.O_RDONLY), "rb") as file:
        # Ask for the size before reading: a file with holes can claim terabytes at no cost.
        too_large = os.fstat(file.fileno()).st_size > bytes_max
        content = b"" if too_large else file.read(bytes_max + 1)
    if too_large or len(content) > bytes_max:
        raise UnsafeFile(errno.EFBIG, f"has more than {bytes_max} bytes", str(folder / name))
    return content


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Give the file `name`, directly in `folder`, this content, completely or not at all. Raises OSError.

    A file that has this content already is not written again.
    """
    with contextlib.suppress(FileNotFoundError, UnsafeFile):
        if read_file(folder, name, len(content)) == content:
            return
    aside = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        (folder / aside).unlink()  # left by a process that had the same pid and was killed
    try:
        with os.fdopen(open_file(folder, aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
        (folder / aside).replace(folder / name)
    except OSError:
        # On a full disk a part of the file would stay, and take the space for good.
        with contextlib.suppress(OSError):
            (folder / aside).unlink()
        raise


def make_folder(folder: Path, name: str) -> None:
    """Make the folder `name` in the existing `folder`. An existing one is not changed.

    Raises UnsafeFile if `name` is something else, such as a link to a folder, and OSError.
    """
    *above, last = name.split("/")
    parent = _descend(folder, above)
    try:
        try:
            os.mkdir(last, FOLDER_MODE, dir_fd=parent)
        except FileExistsError:
            os.close(_descend(folder, name.split("/")))
            return
        made = os.open(last, _FOLDER, dir_fd=parent)
        try:
            # Keep the setgid bit, which passes the parent's group on to new files.
            _set_mode(made, FOLDER_MODE | os.fstat(made).st_mode & stat.S_ISGID)
        finally:
            os.close(made)
    finally:
        os.close(parent)


def make_run_folder(folder: Path) -> None:
    """Make the run's own folder unless it exists. The umask decides the modes of its parents. Raises OSError."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder.parent, folder.name)


def require_own(folder: Path) -> None:
    """Check that only root and this user can change the run in `folder`. A folder that does not exist passes.

    Raises UnsafeFolder if the owner is another user, or a group or everybody may write. Also if one of the run's
    folders or files is a link or a device. Other users may read. Raises OSError if the folder cannot be examined.
    """
    own = folder.resolve()
    if own.parent.is_dir():
        above = own.parent.stat()
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            _refuse(own.parent, "everybody may replace the run's folder in it", f"chmod o-w {own.parent}, or chmod +t")
    if not own.exists():
        return
    _require_unshared(own, own.stat())
    for name in (*_FOLDERS, *_FILES, *_LOGS):
        path, is_folder = own / name, name in _FOLDERS
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_IFMT(found.st_mode) != (stat.S_IFDIR if is_folder else stat.S_IFREG):
            hint = f"move its content into {own}; another disk can be mounted there" if is_folder else "remove it"
            kind = "folder" if is_folder else "file"
            _refuse(path, f"it is {_kind(found.st_mode)}, not a {kind} of the run", hint)
        (_require_unshared if is_folder else _require_owner)(path, found)


def _descend(folder: Path, names: list[str]) -> int:
    """Open the folder that `names` lead to from `folder`. Links are followed on the way to `folder` only."""
    descriptor = os.open(folder, _WAY)
    path = folder
    for name in names:
        path = path / name
        try:
            below = os.open(name, _WAY | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            raise _explained(error, descriptor, name, path) from error
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _open_or_create(parent: int, name: str, flags: int) -> int:
    """Open as os.open does. A file that this call creates gets its fixed mode."""
    if flags & os.O_CREAT:
        try:
            descriptor = os.open(name, flags | os.O_EXCL, FILE_MODE, dir_fd=parent)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        else:
            _set_mode(descriptor, FILE_MODE)
            return descriptor
    return os.open(name, flags & ~os.O_CREAT, dir_fd=parent)


def _set_mode(descriptor: int, mode: int) -> None:
    # A file system without modes (FAT, for example) refuses to change them. Its mount options decide.
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _explained(error: OSError, parent: int, name: str, path: Path) -> OSError:
    """Return the same error with its path, or UnsafeFile if the name leads to something that is not opened."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return OSError(error.errno, error.strerror, str(path))
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR):
        return UnsafeFile(error.errno, f"is {_kind(mode)}, not a file or folder of the run", str(path))
    return OSError(error.errno, error.strerror, str(path))


def _require_plain(found: os.stat_result, path: Path, flags: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(errno.EINVAL, f"is {_kind(found.st_mode)}, not a file of the run", str(path))
    if flags & (os.O_WRONLY | os.O_RDWR) and found.st_uid not in (0, os.geteuid()):
        raise UnsafeFile(errno.EPERM, f"belongs to user {found.st_uid}, not to root or user {os.geteuid()}", str(path))


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def _require_owner(path: Path, found: os.stat_result) -> None:
    own = os.geteuid()
    if found.st_uid not in (0, own):
        hint = f"run as user {found.st_uid}, give it to this user with chown -R, or use another --dir"
        _refuse(path, f"it belongs to user {found.st_uid}, and this is user {own}", hint)


def _require_unshared(path: Path, found: os.stat_result) -> None:
    _require_owner(path, found)
    hint = f"chmod g-w,o-w {path}, or give a folder in it with --dir"
    if found.st_mode & stat.S_IWOTH:
        _refuse(path, "everybody may write to it", hint)
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        _refuse(path, f"group {found.st_gid} may write to it", hint)


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether the owner is the group's only member. Many systems make such a group with each user."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (gid, group.gr_name) and set(group.gr_mem) <= {user.pw_name}


def _refuse(path: Path, why: str, hint: str) -> None:
    raise UnsafeFolder(f"{path}: {why}, so another user could change the run. To go on: {hint}")
