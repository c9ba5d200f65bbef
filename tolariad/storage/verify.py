"""Read and verify the files of a checkpoint. Every byte is checked against its hash before it is used.

The journal holds the hash of the manifest, and the manifest holds the hash of every piece. Pieces are mapped into
memory, hashed on all cores, and used in place, so reading a gigabyte needs no second gigabyte. Promises: a file that
cannot be read raises an error with its name and never a signal. A link, a file of another user, or one of another size
is refused before it is read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from blake3 import blake3

from tolariad import run_files
from tolariad.core import messages as m
from tolariad.storage.manifest import FILE_NAME, Manifest, check_id, decode_manifest

_SLICE_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 4 * 1024 * 1024
MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024
# Linux 5.14. It fills the mapping, and returns an error if touching a page would raise SIGBUS.
_MADV_POPULATE_READ: Final = 22


class CheckpointUnusable(Exception):
    """A checkpoint fails its verification. `file` is relative to its folder."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file = file
        self.why = why


class CheckpointUnfit(CheckpointUnusable):
    """A checkpoint is intact but does not fit the shape of the model. It stays usable for another model."""


def read_manifest(folder: Path, expected_hash: str) -> Manifest:
    """Return the manifest of `folder`. Raises CheckpointUnusable unless its BLAKE3 is `expected_hash`."""
    with _opened(folder, FILE_NAME) as (descriptor, size):
        if size > MANIFEST_BYTES_MAX:
            raise CheckpointUnusable(FILE_NAME, f"has {size} bytes")
        data = b"".join(_read_chunks(descriptor))
    found = blake3(data).hexdigest()
    if found != expected_hash:
        raise CheckpointUnusable(FILE_NAME, f"its BLAKE3 is {found}, the journal says {expected_hash}")
    try:
        return decode_manifest(data)
    except ValueError as error:
        raise CheckpointUnusable(FILE_NAME, str(error)) from error


def map_piece(folder: Path, piece: m.Piece, each: Callable[[], None] = lambda: None) -> memoryview:
    """Return the verified content of a piece as a mapping of its file. Calls `each` after every 64 MiB.

    Writing to the mapping does not change the file. Raises CheckpointUnusable if owner, size or hash are wrong.
    """
    with _opened(folder, piece.name) as (descriptor, size):
        if size != piece.size:
            raise CheckpointUnusable(piece.name, f"has {size} bytes, the manifest says {piece.size}")
        if not size:
            content = memoryview(b"")
        else:
            mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
            content = memoryview(mapped)
        hasher = blake3(max_threads=blake3.AUTO)
        for first in range(0, size, _SLICE_BYTES):
            count = min(_SLICE_BYTES, size - first)
            _populate(mapped, descriptor, first, count)
            hasher.update(content[first : first + count])
            each()
    found = hasher.hexdigest()
    if found != piece.blake3:
        raise CheckpointUnusable(piece.name, f"its BLAKE3 is {found}, the manifest says {piece.blake3}")
    return content


def verify(folder: Path, expected_hash: str) -> Manifest:
    """Hash every piece of `folder` and return the manifest. Raises CheckpointUnusable at the first one that differs."""
    manifest = read_manifest(folder, expected_hash)
    for piece in manifest.pieces:
        map_piece(folder, piece)
    return manifest


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[tuple[int, int]]:
    """Open a file of a checkpoint and yield its descriptor and size. Links and files of another user are refused.

    Raises CheckpointUnusable, also for any OSError inside the `with` block.
    """
    try:
        check_id(folder.name)
        descriptor = run_files.open_file(folder.parent, f"{folder.name}/{name}", os.O_RDONLY)
    except ValueError as error:
        raise CheckpointUnusable(name, str(error)) from error
    except run_files.UnsafeFile as error:
        raise CheckpointUnusable(name, str(error.strerror)) from error
    except OSError as error:
        raise CheckpointUnusable(name, f"cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        owner = folder.parent.stat().st_uid
        if found.st_uid != owner:
            raise CheckpointUnusable(name, f"belongs to user {found.st_uid}, the run's checkpoints to {owner}")
        yield descriptor, found.st_size
    except OSError as error:
        raise CheckpointUnusable(name, f"cannot be read: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


def _madvise(mapped: mmap.mmap, first: int, count: int) -> None:
    mapped.madvise(_MADV_POPULATE_READ, first, count)


def _populate(mapped: mmap.mmap, descriptor: int, first: int, count: int) -> None:
    """Bring a part of the mapping into memory. Raises OSError with the disk's own reason if it cannot be read."""
    try:
        _madvise(mapped, first, count)
    except OSError:
        # Either the system is older or this part is unreadable. An ordinary read succeeds, or raises with the reason.
        for _ in _read_chunks(descriptor, first, count):
            pass


def _read_chunks(descriptor: int, first: int = 0, count: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file from `first` on, at most `count` bytes."""
    left = count if count is not None else MANIFEST_BYTES_MAX
    while left and (chunk := os.pread(descriptor, min(_READ_BYTES, left), first)):
        yield chunk
        first += len(chunk)
        left -= len(chunk)
