"""All file operations of the journal, as one small class.

The writer's promises depend on these calls and on how they fail, so tests replace them. A subclass that fails at call
n, or simulates a disk that loses unsynced data, drives the real writer. The class itself makes the system calls and
adds protection against other users. In a journal's folder it follows no link, opens only regular files, and never
blocks in `open`. New files get mode 0640 and new folders 0750, whatever the umask is. All calls raise `OSError`. Python
retries EINTR by itself; no other error is retried.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from journal.errors import JournalLocked
from journal.filesystem import file_system_magic

# O_DSYNC makes a write durable when it returns: the data, and the file's length if that changed. O_APPEND is never
# used: with it Linux ignores the offset given to pwrite and writes at the end of the file.
_SYNCED = os.O_DSYNC | os.O_CLOEXEC  # safety: write-is-durable
# O_NONBLOCK changes nothing for a regular file. It makes the open of a FIFO return at once instead of blocking.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK
# The group may read, so that a user of the group can watch a run. Only the owner writes.
_FILE_MODE: Final = 0o640
_FOLDER_MODE: Final = 0o750
LOCK_NAME: Final = "lock"
# The errors of `open` for a link, a folder, a socket or a FIFO without a reader, and a missing device.
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
    """A name in the journal's folder is a link, a FIFO, a device or the like. `kind` says which."""

    def __init__(self, path: Path, mode: int) -> None:
        self.kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        super().__init__(errno.EINVAL, f"is {self.kind}, not a file of the journal", str(path))


class Files:
    """The file operations that the journal uses. Paths are full paths, descriptors are small integers."""

    def make_folder(self, folder: Path) -> None:
        """Make `folder` and its parents, and make their names durable. An existing folder is not changed."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        # Parents first: a folder's name is durable only if the names of its parents are.
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        _set_folder_mode(folder)
        # A new folder's name is an entry in its parent. Without this sync a power cut can lose the whole journal,
        # although each of its files was synced.
        self.fsync_folder(folder.parent)  # safety: new-folder-name-is-durable

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, in no order. Raises FileNotFoundError if there is no such folder."""
        return [path.name for path in folder.iterdir()]

    def lock(self, path: Path) -> int:
        """Take the exclusive lock on `path`, a folder or a file; create the file if needed. Raises BlockingIOError."""
        if path.is_dir():
            # A folder cannot be opened for writing, and flock does not need it.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            descriptor = self._open_or_create(path)
        try:
            # The kernel releases an flock when the last descriptor closes, also if the process is killed. A lock file
            # with a pid in it would remain.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # safety: one-writer-holds-lock
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def open_read(self, path: Path) -> int:
        """Open for reading. Raises NotAFile if the name leads to a link, a FIFO or the like."""
        return _open_plain(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_write(self, path: Path) -> int:
        """Open for reading and writing; each write is durable when it returns. Raises NotAFile."""
        return _open_plain(path, os.O_RDWR | _SYNCED)

    def create(self, path: Path) -> int:
        """Make a new file, open as `open_write` does. Raises FileExistsError."""
        # O_EXCL: a file that exists may hold acknowledged events, so it is never opened as a new one.
        # safety: existing-file-never-remade
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SYNCED, _FILE_MODE)
        _set_mode(descriptor, _FILE_MODE)
        return descriptor

    def _open_or_create(self, path: Path) -> int:
        """Open for reading and writing, without synced writes. Create the file if it is missing."""
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        except FileExistsError:
            return _open_plain(path, flags)
        _set_mode(descriptor, _FILE_MODE)
        return descriptor

    def make_direct(self, descriptor: int, block: int) -> None:
        """Make writes to a file that is not empty bypass the page cache: whole blocks, from page-aligned memory.

        Raises OSError if the file system or the device cannot do this. The descriptor is then unchanged.
        """
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        try:
            # Some file systems accept the flag and then refuse each transfer. A read of one block shows whether they
            # do.
            os.preadv(descriptor, [mmap.mmap(-1, block)], 0)
        except OSError:
            # Without O_DIRECT again: writes through the page cache are just as durable, only slower.
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
            raise

    def file_system(self, folder: Path) -> int:
        """Return statfs(2)'s `f_type` for a folder, or for its nearest existing parent."""
        return file_system_magic(_there(folder))

    def free_bytes(self, place: Path | int) -> int:
        """Return how many bytes the calling user can still write to the file system of a folder or an open file."""
        found = os.statvfs(_there(place) if isinstance(place, Path) else place)
        return found.f_bavail * found.f_frsize

    def block_bytes(self, folder: Path) -> int:
        """Return the device's logical block size under a folder or its nearest existing parent; 512 if unknown."""
        device = _there(folder).stat().st_dev
        place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        # A partition has no queue of its own; its disk has.
        for queue in (place / "queue", place / ".." / "queue"):
            try:
                return int((queue / "logical_block_size").read_text())
            except (OSError, ValueError):
                continue
        # A memory file system or a network has no queue. 512 is the smallest block of any disk.
        return 512

    def size(self, descriptor: int) -> int:
        """Return the length of the file in bytes."""
        return os.fstat(descriptor).st_size

    def is_deleted(self, descriptor: int) -> bool:
        """Return whether an open file has no name any more. What is written to it vanishes when it is closed."""
        return os.fstat(descriptor).st_nlink == 0

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read `length` bytes at `offset`; fewer only at the end of the file."""
        data = os.pread(descriptor, length, offset)
        # A signal or the system's limit for one read can cut it short before the end of the file.
        while data and len(data) < length:
            more = os.pread(descriptor, length - len(data), offset + len(data))
            if not more:
                # Zero bytes mean the end of the file. The caller sees that from the short result.
                break
            data += more
        return data

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write once and return how many bytes were written. The caller must handle a short count."""
        # One attempt: `write_all` decides what a short write means.
        return os.pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        """Make the file durable, with its metadata."""
        os.fsync(descriptor)  # safety: file-synced-when-asked

    def fsync_folder(self, folder: Path) -> None:
        """Make a folder's entries durable."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # safety: folder-entries-synced
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name. Durable only after `fsync_folder`."""
        # rename(2) is atomic, and it replaces an existing target. A repair relies on both.
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        # Not synced: if a power cut brings the name back, the next start finds a leftover and removes it again.
        path.unlink()

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)


def _open_plain(path: Path, flags: int) -> int:
    """Open an existing regular file. Raises NotAFile for anything else, and OSError."""
    try:
        descriptor = os.open(path, flags | _PLAIN)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotAFile(path, path.lstat().st_mode) from error
        raise
    # Check the open file, not its name: between a stat and an open, another user could replace the file.
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAFile(path, mode)
    return descriptor


def _set_folder_mode(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Keep the setgid bit, which passes the parent's group on to new files.
        _set_mode(descriptor, _FOLDER_MODE | os.fstat(descriptor).st_mode & stat.S_ISGID)
    finally:
        os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    # A file system without modes (FAT, for example) refuses to change them. Its mount options decide.
    with suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _there(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


OS_FILES = Files()


def write_all(files: Files, descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` with one write, or raise OSError. A short write is a failed write like any other.

    Raises ENOSPC if space is missing, also if the system reports that as a short write or as EIO.
    """
    try:
        taken = files.pwrite(descriptor, data, offset)
    except OSError as error:
        # Some devices report a full disk as EIO (a loop device on a full file system, for example). The caller
        # freezes on EIO but waits on ENOSPC.
        if error.errno == errno.EIO and _lacks_space(files, descriptor, offset + len(data)):
            what = f"no space left on the disk (the system says: {error.strerror}) at offset {offset}"
            raise OSError(errno.ENOSPC, what) from error
        raise
    # No second write for the rest: a frame must reach the disk in one write, or the rule for torn frames does not
    # hold.
    if taken != len(data):  # safety: half-write-is-failed
        how = f"{taken} of {len(data)} bytes were written at offset {offset}"
        if _lacks_space(files, descriptor, offset + len(data)):
            raise OSError(errno.ENOSPC, f"no space left on the disk: {how}")
        raise OSError(errno.EIO, f"short write: {how}")


def _lacks_space(files: Files, descriptor: int, end: int) -> bool:
    """Return whether the file would have to grow to reach `end` and the file system has too little space for that."""
    try:
        growth = end - files.size(descriptor)
        return growth > 0 and files.free_bytes(descriptor) < growth
    except OSError:
        return False  # report the first error, not one of this check


# One writer: an flock on the file `lock` in the journal's folder, and one on the folder itself. Both are released when
# the process ends, however it ends. The file is the visible lock, and a user may remove it to get rid of the lock. The
# next writer would then create and lock a new file, and two writers would write into one segment. The folder cannot be
# removed while it contains a journal.
def take_locks(files: Files, folder: Path, hint: str) -> Sequence[int]:
    """Lock the journal in `folder`. Return the descriptors of the locks. Raises JournalLocked with `hint`, OSError."""
    held: list[int] = []
    try:
        held.append(files.lock(folder / LOCK_NAME))
        held.append(files.lock(folder))  # safety: folder-is-locked
    except BlockingIOError as error:
        release_locks(files, held)  # safety: one-lock-of-two-released
        raise JournalLocked("another process writes this journal", path=folder, hint=hint) from error
    except OSError:
        # Some network file systems cannot lock folders. The file's lock is then the only one.
        if not held:
            raise
    return held


def release_locks(files: Files, held: Sequence[int]) -> None:
    """Release the locks, the file's last: a process that waits for it then finds the folder free."""
    for descriptor in reversed(held):
        files.close(descriptor)
