"""Open and create the files of a run. All packages use this module, so that one set of rules holds for all files.

Promises: no symbolic link below the run's folder is followed, at any depth; only regular files are opened, and opening
never waits (a FIFO would); a file that is written belongs to root or to this user; new files have mode 0640 and new
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
# The folders of a run, and the files that are opened for writing at one time or another.
_FOLDERS: Final = ("journal", "checkpoints", "logs", "exports")
_FILES: Final = (
    "config.yaml",
    "config.resolved.json",
    "trainer.lock",
    *("logs/trainer.log", "logs/trainer.log.1", "logs/trainer.stacks"),
)
# O_PATH needs no permission to list the folder. Other systems than Linux, which only read, do without.
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK changes nothing for a regular file, and lets the open of anything else return at once.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UnsafeFile(OSError):
    """A name in a run's folder is a link, a device or the like, or belongs to another user."""


class UnsafeFolder(Exception):
    """Somebody other than root and this user can write to a run's folder; the text says who, and what to do."""


def open_file(folder: Path, name: str, flags: int) -> int:
    """Open the regular file `name`, a path relative to the run's `folder`; returns a descriptor.

    `flags` are those of os.open, without O_TRUNC: truncate the descriptor, which is known to be the run's own file.
    Raises UnsafeFile for anything that is no regular file of this run, and OSError.
    """
    *above, last = name.split("/")
    if not {"", ".", ".."}.isdisjoint((*above, last)):
        raise UnsafeFile(errno.EINVAL, "is no name of a file within the run's folder", name)
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


def open_folder(folder: Path, name: str) -> int:
    """Open the folder `name` in `folder`, to lock or to sync it; returns a descriptor. Raises as `open_file`."""
    parent = _descend(folder, [])
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        raise _explained(error, parent, name, folder / name) from error
    finally:
        os.close(parent)


def read_file(folder: Path, name: str, bytes_max: int) -> bytes:
    """Return what the file holds. Raises UnsafeFile if that is more than `bytes_max` bytes, and as `open_file`."""
    with os.fdopen(open_file(folder, name, os.O_RDONLY), "rb") as file:
        # Before it is read: a file with holes claims terabytes at no cost.
        too_large = os.fstat(file.fileno()).st_size > bytes_max
        content = b"" if too_large else file.read(bytes_max + 1)
    if too_large or len(content) > bytes_max:
        raise UnsafeFile(errno.EFBIG, f"has more than {bytes_max} bytes", str(folder / name))
    return content


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Give the file `name`, directly in `folder`, this content, whole or not at all. Raises OSError.

    A file that has it already is left alone.
    """
    with contextlib.suppress(FileNotFoundError, UnsafeFile):
        if read_file(folder, name, len(content)) == content:
            return
    aside = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        (folder / aside).unlink()  # of a process that had this number and was killed
    with os.fdopen(open_file(folder, aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(content)
    (folder / aside).replace(folder / name)


def make_folder(folder: Path, name: str) -> None:
    """Make the folder `name` in `folder`, which is there; one that exists is left as it is.

    Raises UnsafeFile if the name is something else, such as a link to a folder, and OSError.
    """
    *above, last = name.split("/")
    parent = _descend(folder, above)
    try:
        try:
            os.mkdir(last, FOLDER_MODE, dir_fd=parent)
        except FileExistsError:
            os.close(_descend(folder, name.split("/")))
            return
        made = os.open(last, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            # With the bit that hands the parent's group on, where the parent has it.
            _set_mode(made, FOLDER_MODE | os.fstat(made).st_mode & stat.S_ISGID)
        finally:
            os.close(made)
    finally:
        os.close(parent)


def make_run_folder(folder: Path) -> None:
    """Make the run's own folder, unless it is there. Folders above it are made with the umask's modes.

    Raises OSError.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder.parent, folder.name)


def require_own(folder: Path) -> None:
    """Check that only root and this user can change the run in `folder`; a folder that is not there passes.

    Raises UnsafeFolder: for another owner, for write permission of a group or of everybody, for a link or a device in
    the place of one of the run's folders or files. Reading is free. Raises OSError where the folder cannot be looked
    at.
    """
    own = folder.resolve()
    if own.parent.is_dir():
        above = own.parent.stat()
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            _refuse(own.parent, "everybody may replace the run's folder in it", f"chmod o-w {own.parent}, or chmod +t")
    if not own.exists():
        return
    _require_unshared(own, own.stat())
    for name in _FOLDERS:
        if (found := _status(own / name)) is None:
            continue
        if not stat.S_ISDIR(found.st_mode):
            hint = f"move what is there into {own}; another disk can be mounted there"
            _refuse(own / name, f"it is {_kind(found.st_mode)}, not a folder of the run", hint)
        _require_unshared(own / name, found)
    for name in _FILES:
        if (found := _status(own / name)) is None:
            continue
        if not stat.S_ISREG(found.st_mode):
            _refuse(own / name, f"it is {_kind(found.st_mode)}, not a file of the run", "remove it")
        _require_owner(own / name, found)


def _descend(folder: Path, names: list[str]) -> int:
    """A descriptor of the folder that `names` lead to from `folder`; only the way to `folder` may have links."""
    descriptor = os.open(folder, _FOLDER)
    path = folder
    for name in names:
        path = path / name
        try:
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            raise _explained(error, descriptor, name, path) from error
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _open_or_create(parent: int, name: str, flags: int) -> int:
    """As os.open; a file that this call makes gets its mode."""
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
    # A file system without modes, such as FAT, refuses to change them: what it grants is its mount options'.
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _explained(error: OSError, parent: int, name: str, path: Path) -> OSError:
    """The same error, or UnsafeFile if the reason is what lies under that name."""
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
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(mode), "a file")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


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
    """Whether the group is the one of the owner alone that many systems make with each user, for a umask of 002."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (gid, group.gr_name) and set(group.gr_mem) <= {user.pw_name}


def _refuse(path: Path, why: str, hint: str) -> None:
    raise UnsafeFolder(f"{path}: {why}, so another user could change the run. To go on: {hint}")
