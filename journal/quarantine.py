"""Quarantine a torn tail: copy it, then overwrite it with zeros, so that old bytes can never be taken for a frame.

After a crash between the two the tail is still torn, and the next start repeats the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from journal.errors import JournalError
from journal.files import Files, write_all
from journal.packed import is_packed
from journal.segment import SegmentName

QUARANTINE: Final = "quarantine"
_PIECE_BYTES: Final = 1 << 20


def set_aside(files: Files, segment: SegmentName, start: int, end: int) -> Path:
    """Copy bytes `start` to `end` of a segment into the quarantine folder, then zero them. Both are durable.

    Returns the copy's path. Raises OSError; the tail is then still there, whole or in part. JournalError: it is packed.
    """
    if is_packed(segment.path):  # safety: packed-segment-never-cut
        # Each of its bytes represents many: zeroing some of them would destroy a whole piece of acknowledged frames.
        raise JournalError("a packed segment is never written to", path=segment.path)
    folder = segment.path.parent / QUARANTINE
    files.make_folder(folder)
    # O_DSYNC: each block of zeros is durable in order, so after a crash the rest still looks torn and is copied
    # again.
    descriptor = files.open_write(segment.path)
    try:
        # The rest of the file stays: only bytes that `recover` or a repair has classified are cut.
        # The copy and its name are durable before the first byte is zeroed. A crash in between repeats the copy.
        copy = _copy(files, descriptor, folder / f"{segment.path.stem}-{start:012d}", start, end)
        files.fsync_folder(folder)  # safety: copy-of-tail-before-zeroing
        for at in range(start, end, _PIECE_BYTES):
            # Zeros, because the rules for a torn end rely on them: all bytes after the last acknowledged frame are
            # zero.
            write_all(files, descriptor, bytes(min(_PIECE_BYTES, end - at)), at)  # safety: torn-tail-zeroed
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
    return copy


def _copy(files: Files, source: int, stem: Path, start: int, end: int) -> Path:
    # An existing name is an earlier copy, perhaps of a start that crashed here. It may be the only whole one, so it is
    # never overwritten.
    taken = files.names(stem.parent)
    number = sum(1 for name in taken if name.startswith(stem.name))  # safety: earlier-tail-copy-kept
    target = stem.with_name(f"{stem.name}-{number}.torn")
    descriptor = files.create(target)
    try:
        _copy_bytes(files, source, descriptor, start, end)
    finally:
        files.close(descriptor)
    return target


def copy_aside(files: Files, source: Path, target: Path) -> None:
    """Copy a whole file durably. The caller syncs the folder. Raises OSError."""
    # The original stays as it is: it may be needed for a closer look, and the copy may fail.
    reading = files.open_read(source)
    try:
        descriptor = files.create(target)
        try:
            _copy_bytes(files, reading, descriptor, 0, files.size(reading))
        finally:
            files.close(descriptor)
    finally:
        files.close(reading)


def _copy_bytes(files: Files, source: int, target: int, start: int, end: int) -> None:
    for at in range(start, end, _PIECE_BYTES):
        write_all(files, target, files.pread(source, min(_PIECE_BYTES, end - at), at), at - start)
    # The bytes before the name: the caller syncs the folder afterwards.
    files.fsync(target)
