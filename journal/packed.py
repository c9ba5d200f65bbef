"""Packed segments: the exact bytes of a sealed segment, compressed in pieces. A read unpacks only the pieces it needs.

A `.wal.zst` file is a sequence of Zstandard frames, one for each piece of the segment. After them a skippable frame
contains a table of their lengths and checksums. `zstd -d` restores the whole segment, byte for byte, with its zeros.
This module reads any part of it. A CRC-32C covers every bit of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from google_crc32c import value as crc32c

from journal.errors import Damage, JournalDamaged, JournalTooNew
from journal.files import Files, NotAFile, write_all
from journal.format import SEGMENT_BYTES_MAX

PACKED_SUFFIX: Final = ".zst"
# 64 frames of one block. A piece is unpacked in 0.1 ms, and larger pieces would save less than 2 % of space.
PIECE_BYTES: Final = 256 * 1024
PIECE_BYTES_MAX: Final = 1 << 26
_LEVEL: Final = 3
_WRITE_BYTES: Final = 1 << 20
_VERSION: Final = 1
_MAGIC: Final = b"ESPERPAK"
# The head of a Zstandard skippable frame: its magic, and how many bytes follow.
_SKIPPABLE: Final = struct.Struct("<II")
_SKIPPABLE_MAGIC: Final = 0x184D2A5E
_ROW: Final = struct.Struct("<II")  # length of a packed piece, CRC-32C of it
# segment_bytes, piece_bytes, pieces, version, magic; then the CRC-32C of the whole skippable frame up to there.
_TRAILER: Final = struct.Struct("<QIII8s")
_CRC: Final = struct.Struct("<I")


class Piece(NamedTuple):
    """One packed piece: its place in the file, and its checksum."""

    offset: int
    length: int
    crc: int


def packed_path(plain: Path) -> Path:
    """Return the name of a segment's packed file."""
    return plain.with_name(plain.name + PACKED_SUFFIX)


def is_packed(path: Path) -> bool:
    """Return whether this is the name of a packed segment."""
    # By name only: the content is checked when the file is opened.
    return path.suffix == PACKED_SUFFIX


class PlainFile:
    """A segment file as it was written."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor

    def size(self) -> int:
        """Return the length of the segment."""
        return self._files.size(self._descriptor)

    def file_bytes(self) -> int:
        """Return the length of the file."""
        return self._files.size(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Read `length` bytes of the segment; fewer only at its end."""
        return self._files.pread(self._descriptor, length, offset)

    def sync(self) -> None:
        """Make the file durable before it is read."""
        self._files.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._descriptor)


class PackedFile(PlainFile):
    """A packed segment file, read like a plain one. It keeps the piece that was unpacked last."""

    def __init__(self, files: Files, descriptor: int, path: Path) -> None:
        """Raises JournalDamaged, JournalTooNew."""
        super().__init__(files, descriptor)
        self._path = path
        self._piece = b""
        self._piece_no = -1
        self._unpacker: Any = None
        # At once: if the table does not verify, no byte of the file is ever returned.
        self._pieces, self._segment_bytes, self._piece_bytes = self._table()

    def _damaged(self, what: str, offset: int) -> JournalDamaged:
        return JournalDamaged(what, damage=Damage.PACKED, path=self._path, offset=offset)

    def _table(self) -> tuple[list[Piece], int, int]:
        size = super().size()
        # The trailer is at the end, with a fixed length: it gives the length of the table before it.
        tail_bytes = _TRAILER.size + _CRC.size
        tail = super().read(max(0, size - tail_bytes), tail_bytes)
        # Without the magic number the file was cut off. If packing never finished, the plain segment still exists.
        if len(tail) < tail_bytes or tail[_TRAILER.size - 8 : _TRAILER.size] != _MAGIC:
            raise self._damaged("the packed segment has no table at its end", size)
        segment_bytes, piece_bytes, pieces, version, _ = _TRAILER.unpack_from(tail)
        table_bytes = _SKIPPABLE.size + pieces * _ROW.size + tail_bytes
        table = super().read(max(0, size - table_bytes), table_bytes) if table_bytes <= size else b""
        # The checksum comes before the version: only a number that verifies may be taken for a newer version.
        if crc32c(table[: -_CRC.size]) != _CRC.unpack_from(tail, _TRAILER.size)[0]:  # safety: packed-table-checksum
            raise self._damaged("the table of the packed segment fails its checksum", max(0, size - table_bytes))
        if version != _VERSION:  # safety: newer-packed-refused
            hint = "Use the version of the program that packed it, or a later one."
            raise JournalTooNew("the segment was packed by a newer version", path=self._path, hint=hint)
        pairs = list(_ROW.iter_unpack(table[_SKIPPABLE.size : -tail_bytes]))
        ends = list(accumulate(length for length, _ in pairs))
        table_pieces = [Piece(end - length, length, crc) for end, (length, crc) in zip(ends, pairs, strict=True)]
        # Check the numbers although the checksum is right: a forged table must not decide how much memory is allocated.
        fits = (
            0 < piece_bytes <= PIECE_BYTES_MAX
            and segment_bytes <= SEGMENT_BYTES_MAX
            and pieces == -(-segment_bytes // piece_bytes)
            and (ends[-1] if ends else 0) + table_bytes == size
            and _SKIPPABLE.unpack_from(table) == (_SKIPPABLE_MAGIC, table_bytes - _SKIPPABLE.size)
        )
        if not fits:  # safety: packed-table-describes
            raise self._damaged("the table of the packed segment does not describe it", max(0, size - table_bytes))
        return table_pieces, segment_bytes, piece_bytes

    def size(self) -> int:
        """Return the length of the unpacked segment."""
        return self._segment_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Read `length` bytes of the segment; fewer only at its end. Raises JournalDamaged."""
        end = min(offset + length, self._segment_bytes)
        parts = []
        while offset < end:
            number, start = divmod(offset, self._piece_bytes)
            # A read may cross pieces: frames do not end at the borders of pieces.
            part = self._unpacked(number)[start : start + end - offset]
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _unpacked(self, number: int) -> bytes:
        if number == self._piece_no:
            return self._piece
        row = self._pieces[number]
        packed = super().read(row.offset, row.length)
        expected = min(self._piece_bytes, self._segment_bytes - number * self._piece_bytes)
        # Check before unpacking: the decompressor gets only bytes that this program wrote.
        if crc32c(packed) != row.crc:  # safety: packed-piece-checksum
            raise self._damaged(f"piece {number} of the packed segment fails its checksum", row.offset)
        piece = self._unpack(packed, expected)
        if piece is None:
            raise self._damaged(f"piece {number} of the packed segment does not unpack", row.offset)
        # Frames are read in order and are smaller than a piece, so the last piece serves most reads.
        self._piece, self._piece_no = piece, number
        return piece

    def _unpack(self, packed: bytes, expected: int) -> bytes | None:
        import zstandard  # here: most reading commands meet no packed segment

        if self._unpacker is None:
            self._unpacker = zstandard.ZstdDecompressor()
        try:
            # Check the length in the frame's head first: the decompressor allocates as much as it says.
            claimed = zstandard.frame_content_size(packed)
            # safety: packed-piece-bound
            piece: bytes = self._unpacker.decompress(packed) if claimed == expected else b""
        except zstandard.ZstdError:
            return None
        return piece if len(piece) == expected else None


def open_packed(files: Files, path: Path) -> PackedFile:
    """Open a file as a packed segment, whatever its name. Raises JournalDamaged, JournalTooNew, OSError."""
    descriptor = _open_read(files, path)
    try:
        return PackedFile(files, descriptor, path)
    # Also for a KeyboardInterrupt: the descriptor has no owner yet.
    except BaseException:
        files.close(descriptor)
        raise


def open_segment(files: Files, path: Path) -> PlainFile:
    """Open a segment for reading, packed or not. If it was packed since its name was read, open the packed file."""
    if is_packed(path):
        return open_packed(files, path)
    try:
        return PlainFile(files, _open_read(files, path))
    except FileNotFoundError:
        # A live writer packs a segment and then removes the plain file. A reader that listed the folder before that
        # looks again.
        if packed_path(path).name not in files.names(path.parent):
            raise
        return open_packed(files, packed_path(path))


def _open_read(files: Files, path: Path) -> int:
    try:
        return files.open_read(path)
    except NotAFile as error:
        what = f"the name of a segment leads to {error.kind}"
        hint = "Put the segment itself there, or restore it from a copy."
        raise JournalDamaged(what, damage=Damage.MISPLACED, path=path, hint=hint) from error


def write_packed(files: Files, source: PlainFile, target: Path, rest: Callable[[], None]) -> None:
    """Pack `source` into a new file `target`, durably. Calls `rest` after each piece. Raises OSError."""
    descriptor = files.create(target)
    try:
        at, waiting = 0, b""
        for part in _packed_parts(source):
            waiting += part
            # Write in pieces of 1 MiB: each write is synced, and a write for each packed piece would cost a sync
            # each.
            if len(waiting) >= _WRITE_BYTES:
                write_all(files, descriptor, waiting, at)
                at, waiting = at + len(waiting), b""
            # After each piece, so that packing takes only a part of a core.
            rest()
        write_all(files, descriptor, waiting, at)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def _packed_parts(source: PlainFile) -> Iterator[bytes]:
    """Yield the packed pieces of a segment, then the table over them."""
    import zstandard

    packer = zstandard.ZstdCompressor(level=_LEVEL)
    size = source.size()
    rows = []
    for offset in range(0, size, PIECE_BYTES):
        packed = packer.compress(source.read(offset, PIECE_BYTES))
        rows.append(_ROW.pack(len(packed), crc32c(packed)))
        yield packed
    # The table comes last and in a skippable frame: the packer needs only one pass, and `zstd -d` ignores it.
    content = b"".join(rows) + _TRAILER.pack(size, PIECE_BYTES, len(rows), _VERSION, _MAGIC)
    table = _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(content) + _CRC.size) + content
    yield table + _CRC.pack(crc32c(table))


def same_bytes(one: PlainFile, other: PlainFile, rest: Callable[[], None]) -> bool:
    """Return whether two segments are equal byte for byte. Raises JournalDamaged if one does not unpack."""
    if one.size() != other.size():
        return False
    for offset in range(0, one.size(), PIECE_BYTES):
        if one.read(offset, PIECE_BYTES) != other.read(offset, PIECE_BYTES):
            return False
        rest()
    return True
