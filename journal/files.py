"""Every file operation of the journal, behind one small protocol.

The writer's promises rest on what these calls do and on what happens when they fail, so tests replace them: a fake that
fails at call n, or a simulated disk that loses what was not synced, drives the real writer. The real implementation adds
to the system calls only what keeps other hands out: it follows no link in a journal's folder, opens nothing but regular
files and never waits in an open, and gives new files mode 0640 and new folders 0750, whatever the umask. It raises
`OSError`; Python retries EINTR by itself, nothing else is retried anywhere.
"""

# ruff: noqa: D102 -- the protocol documents each call; its implementation does not repeat it
from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from journal.filesystem import file_system_magic

# O_APPEND is never used: with it Linux ignores the offset given to pwrite and writes at the end of the file.
_SYNCED = os.O_DSYNC | os.O_CLOEXEC
# O_NONBLOCK changes nothing for a regular file, and lets the open of a FIFO return at once.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK
_FILE_MODE: Final = 0o640
_FOLDER_MODE: Final = 0o750
# What open says of a link, a folder, a socket or a FIFO that nobody reads, and a device that is not there.
_NOT_PLAIN: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotAFile(OSError):
    """A name of the journal's leads to a link, a FIFO, a device or the like; `kind` says which."""

    def __init__(self, path: Path, mode: int) -> None:
        self.kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        super().__init__(errno.EINVAL, f"is {self.kind}, not a file of the journal", str(path))


class Files(Protocol):
    """What the journal asks of a file system. Paths are whole paths, descriptors are small integers."""

    def make_folder(self, folder: Path) -> None:
        """Make `folder` and its parents, and make the entries durable. A folder that is there is left alone."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in no order. Raises FileNotFoundError if there is no such folder."""

    def lock(self, path: Path) -> int:
        """Take the exclusive lock on `path`, a folder or a file that is made if need be. Raises BlockingIOError if taken."""

    def open_read(self, path: Path) -> int:
        """Open for reading. Raises NotAFile if the name leads to a link, a FIFO or the like."""

    def open_write(self, path: Path) -> int:
        """Open for reading and writing; each write is durable when it returns. Raises NotAFile."""

    def create(self, path: Path) -> int:
        """Make a new file, open as `open_write` does. Raises FileExistsError."""

    def make_direct(self, descriptor: int, block: int) -> None:
        """Let writes to a file that holds something pass by the page cache: whole blocks, from memory that begins at a page.

        Raises OSError where the file system or the device cannot, and leaves the descriptor as it was.
        """

    def block_bytes(self, folder: Path) -> int:
        """The logical block of the device under a folder, or under the nearest parent that is there; 512 if unknown."""

    def file_system(self, folder: Path) -> int:
        """The type of the file system under a folder, or under the nearest parent that is there: statfs(2)'s `f_type`."""

    def free_bytes(self, folder: Path) -> int:
        """How much can still be written on the file system under a folder by who asks."""

    def free_beside(self, descriptor: int) -> int:
        """As `free_bytes`, on the file system of an open file."""

    def size(self, descriptor: int) -> int:
        """Length of the file in bytes."""

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read `length` bytes at `offset`; fewer only at the end of the file."""

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write once and return how many bytes were taken; a short count is the caller's to judge."""

    def fsync(self, descriptor: int) -> None:
        """Make the file durable, with its metadata."""

    def fsync_folder(self, folder: Path) -> None:
        """Make a folder's entries durable."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name. Durable only after `fsync_folder`."""

    def unlink(self, path: Path) -> None:
        """Remove a file."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""


class OsFiles(Files):
    """The operating system's files."""

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        _set_folder_mode(folder)
        self.fsync_folder(folder.parent)

    def names(self, folder: Path) -> list[str]:
        return [path.name for path in folder.iterdir()]

    def lock(self, path: Path) -> int:
        if path.is_dir():
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            descriptor = self._open_or_create(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def open_read(self, path: Path) -> int:
        return _open_plain(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_write(self, path: Path) -> int:
        return _open_plain(path, os.O_RDWR | _SYNCED)

    def create(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SYNCED, _FILE_MODE)
        _set_mode(descriptor, _FILE_MODE)
        return descriptor

    def _open_or_create(self, path: Path) -> int:
        """Open for reading and writing, without the cost of synced writes; made if need be."""
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        except FileExistsError:
            return _open_plain(path, flags)
        _set_mode(descriptor, _FILE_MODE)
        return descriptor

    def make_direct(self, descriptor: int, block: int) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        try:
            # The flag alone proves little: that a block of this size is taken shows when one is read.
            os.preadv(descriptor, [mmap.mmap(-1, block)], 0)
        except OSError:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
            raise

    def file_system(self, folder: Path) -> int:
        return file_system_magic(_there(folder))

    def free_bytes(self, folder: Path) -> int:
        found = os.statvfs(_there(folder))
        return found.f_bavail * found.f_frsize

    def free_beside(self, descriptor: int) -> int:
        found = os.fstatvfs(descriptor)
        return found.f_bavail * found.f_frsize

    def block_bytes(self, folder: Path) -> int:
        device = _there(folder).stat().st_dev
        place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        for queue in (place / "queue", place / ".." / "queue"):  # a partition's are its disk's
            try:
                return int((queue / "logical_block_size").read_text())
            except (OSError, ValueError):
                continue
        return 512

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        while data and len(data) < length:
            more = os.pread(descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def fsync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def close(self, descriptor: int) -> None:
        os.close(descriptor)


def _open_plain(path: Path, flags: int) -> int:
    """Open a regular file that is there. Raises NotAFile for anything else, and OSError."""
    try:
        descriptor = os.open(path, flags | _PLAIN)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotAFile(path, path.lstat().st_mode) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAFile(path, mode)
    return descriptor


def _set_folder_mode(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # With the bit that hands the parent's group on, where the parent has it.
        _set_mode(descriptor, _FOLDER_MODE | os.fstat(descriptor).st_mode & stat.S_ISGID)
    finally:
        os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    # A file system without modes refuses to change them: what it grants is its mount options'.
    with suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _there(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


OS_FILES = OsFiles()


def write_all(files: Files, descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """One write that takes everything, or an OSError: half a frame on disk is a failed write like any other.

    ENOSPC is raised where space is missing, also if the system only wrote less than it was given, or says EIO.
    """
    try:
        taken = files.pwrite(descriptor, data, offset)
    except OSError as error:
        if error.errno == errno.EIO and _lacks_space(files, descriptor, offset + len(data)):
            what = f"no space left on the disk (the system says: {error.strerror}) at offset {offset}"
            raise OSError(errno.ENOSPC, what) from error
        raise
    if taken != len(data):
        how = f"{taken} of {len(data)} bytes were written at offset {offset}"
        if _lacks_space(files, descriptor, offset + len(data)):
            raise OSError(errno.ENOSPC, f"no space left on the disk: {how}")
        raise OSError(errno.EIO, f"short write: {how}")


def _lacks_space(files: Files, descriptor: int, end: int) -> bool:
    """Whether the file would have to grow to reach `end`, and the file system has less space than that takes."""
    try:
        growth = end - files.size(descriptor)
        return growth > 0 and files.free_beside(descriptor) < growth
    except OSError:
        return False  # what failed first is what is told
