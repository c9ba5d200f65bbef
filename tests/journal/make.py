"""Shared by the journal's tests: small journals, events, a file system in memory, and one that fails on demand."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from journal import Files, Journal, JournalEntry, JournalError, Reader

RUN = bytes(range(16))
CONTEXT = bytes(range(32))
BOOT = b"boot-id-16-bytes"
SMALL = 512  # the least alignment: small images, every byte of which can be broken
SECOND_NS = 1_000_000_000


def event(number: int, size: int = 0) -> bytes:
    """Return one event as the kernel encodes it: a map with a type, and a payload of any size."""
    return msgspec.msgpack.encode({"type": "Stepped", "n": number, "loss": number / 7, "filler": "x" * size})


def begin(journal: Journal, state: Callable[[], object] = lambda: None) -> Journal:
    """Begin a journal with the usual identity; `state` is captured at the segment heads."""
    journal.begin(
        run_id=RUN, context_hash=CONTEXT, capture=lambda: msgspec.msgpack.encode(state()), wall_ns=1, boot_id=BOOT
    )
    return journal


def commit(journal: Journal, events: Iterable[bytes], step: int = 0, wall_ns: int = 0) -> int:
    """Commit one batch with labels derived from the step."""
    return journal.commit(list(events), epoch=step // 10, step=step, wall_ns=wall_ns or step * SECOND_NS, mono_ns=step)


def entries(records: Iterable[object]) -> list[tuple[int, bytes]]:
    """Return sequence number and bytes of every entry among the records."""
    return [(record.seq, bytes(record.event)) for record in records if isinstance(record, JournalEntry)]


def numbered(events: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Return the events as a journal with exactly these events returns them."""
    return list(enumerate(events, start=1))


def read_all(folder: Path, files: Files) -> tuple[list[tuple[int, bytes]], JournalError | None]:
    """Return all events that a reader yields before it ends or refuses."""
    got: list[tuple[int, bytes]] = []
    try:
        with Reader(folder, files=files) as reader:
            for entry in reader:
                got.append((entry.seq, bytes(entry.event)))  # noqa: PERF401 -- what came before an error counts
    except JournalError as error:
        return got, error
    return got, None


def write_all_back(folder: Path, files: Files) -> tuple[list[tuple[int, bytes]], JournalError | None]:
    """Open for writing as a daemon does. Return the events that it would fold, or the refusal."""
    try:
        with contextlib.closing(
            Journal.open(folder, alignment=SMALL, segment_bytes=64 * SMALL, files=files)
        ) as journal:
            return entries(journal.records()), None
    except JournalError as error:
        return [], error


class MemoryFiles(Files):
    """A file system of byte arrays, for tens of thousands of small journals."""

    def __init__(self, images: dict[Path, bytes] | None = None) -> None:
        self.images = {path: bytearray(image) for path, image in (images or {}).items()}
        self.locked: set[Path] = set()
        self.open: dict[int, Path] = {}
        self.gone: dict[int, bytearray] = {}  # open files whose name was removed
        self.next_descriptor = 1000

    def snapshot(self) -> dict[Path, bytes]:
        """Every file as it is now."""
        return {path: bytes(image) for path, image in self.images.items()}

    def _opened(self, path: Path) -> int:
        self.next_descriptor += 1
        self.open[self.next_descriptor] = path
        return self.next_descriptor

    def make_folder(self, folder):
        return None

    def names(self, folder):
        return [path.name for path in self.images if path.parent == folder]

    def lock(self, path):
        if path in self.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        self.locked.add(path)
        return self._opened(path)

    def open_read(self, path):
        if path not in self.images:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._opened(path)

    open_write = open_read

    def create(self, path):
        if path in self.images:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self.images[path] = bytearray()
        return self._opened(path)

    def size(self, descriptor):
        return len(self._image(descriptor))

    def is_deleted(self, descriptor):
        return descriptor in self.gone

    def _image(self, descriptor):
        return self.gone[descriptor] if descriptor in self.gone else self.images[self.open[descriptor]]

    def pread(self, descriptor, length, offset):
        if not (0 <= offset < 1 << 63 and 0 <= length < 1 << 31):
            raise OverflowError(f"pread of {length} bytes at {offset}")  # as the system call's wrapper does
        return bytes(self._image(descriptor)[offset : offset + length])

    def pwrite(self, descriptor, data, offset):
        image = self.images[self.open[descriptor]]
        if len(image) < offset:
            image.extend(bytes(offset - len(image)))
        image[offset : offset + len(data)] = data
        return len(data)

    def fsync(self, descriptor):
        return None

    def fsync_folder(self, folder):
        return None

    # Descriptors are numbers of this class. The process may have a file of its own open under the same number, so no
    # call may reach the operating system.
    def make_direct(self, descriptor, block):
        raise OSError(errno.EINVAL, "there is no page cache to bypass")

    def file_system(self, folder):
        return 0

    def free_bytes(self, place):
        return 1 << 40

    def block_bytes(self, folder):
        return SMALL

    def rename(self, source, target):
        image = self.images.pop(source)
        self.images[target] = image
        self.open = {number: target if path == source else path for number, path in self.open.items()}

    def unlink(self, path):
        if path not in self.images:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        image = self.images.pop(path)
        self.gone.update({number: image for number, name in self.open.items() if name == path})

    def close(self, descriptor):
        self.gone.pop(descriptor, None)
        self.locked.discard(self.open.pop(descriptor))


class FaultyFiles(Files):
    """The operating system's files, with one call, or all calls from one on, failing on demand."""

    CALLS = ("pwrite", "fsync", "fsync_folder", "rename", "create", "open_write")

    def __init__(self, call: str, first: int, last: int, fault: int | str) -> None:
        self.call, self.first, self.last, self.fault = call, first, last, fault
        self.count = 0
        self.failed: list[int] = []
        self.only_spares = False
        self.spares: set[int] = set()

    def strike_in_spares(self) -> None:
        """From now on fail only in calls that create a file of zeros."""
        self.only_spares, self.first, self.last = True, 0, 1 << 30

    def _strikes(self, call: str) -> bool:
        if call != self.call:
            return False
        self.count += 1
        return self.first <= self.count <= self.last

    def _raise(self) -> None:
        raise OSError(self.fault, os.strerror(int(self.fault)))

    def pwrite(self, descriptor, data, offset):
        if (self.only_spares and descriptor not in self.spares) or not self._strikes("pwrite"):
            if descriptor in self.failed:
                raise AssertionError("a descriptor that failed was written again")
            return super().pwrite(descriptor, data, offset)
        self.failed.append(descriptor)
        if self.fault == "short":
            return super().pwrite(descriptor, data[: len(data) // 2], offset)
        self._raise()
        return 0

    def fsync(self, descriptor):
        if (not self.only_spares or descriptor in self.spares) and self._strikes("fsync"):
            self._raise()
        super().fsync(descriptor)

    def fsync_folder(self, folder):
        if self._strikes("fsync_folder"):
            self._raise()
        super().fsync_folder(folder)

    def rename(self, source, target):
        if self._strikes("rename"):
            self._raise()
        super().rename(source, target)

    def create(self, path):
        if self._strikes("create"):
            self._raise()
        descriptor = super().create(path)
        self.spares.add(descriptor)
        return descriptor

    def open_write(self, path):
        if self._strikes("open_write"):
            self._raise()
        return super().open_write(path)

    def close(self, descriptor):
        if descriptor in self.failed:
            self.failed.remove(descriptor)  # its number may come again, for another file
        self.spares.discard(descriptor)
        super().close(descriptor)
