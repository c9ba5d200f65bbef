"""Reading a checkpoint's folder: each byte is compared with its hash before anyone may use it.

The chain of trust is: the journal holds the manifest's hash, the manifest holds every piece's.
Promises: what `read_piece` returns are the very bytes that were hashed, so nothing can change in between.
It must not know: what the pieces mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blake3 import blake3

from tolariad.storage.manifest import FILE_NAME, Manifest, decode_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tolariad.core.vocabulary.checkpoints import Piece

_CHUNK_BYTES: Final = 4 * 1024 * 1024


class CheckpointUnusable(Exception):
    """A checkpoint fails its verification. `file` is relative to its folder."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file = file
        self.why = why


def read_manifest(folder: Path, expected_hash: str) -> Manifest:
    """The manifest of `folder`. Raises CheckpointUnusable unless its BLAKE3 is `expected_hash`."""
    try:
        data = (folder / FILE_NAME).read_bytes()
    except OSError as error:
        raise CheckpointUnusable(FILE_NAME, f"cannot be read: {error.strerror}") from error
    found = blake3(data).hexdigest()
    if found != expected_hash:
        raise CheckpointUnusable(FILE_NAME, f"its BLAKE3 is {found}, the journal says {expected_hash}")
    try:
        return decode_manifest(data)
    except ValueError as error:
        raise CheckpointUnusable(FILE_NAME, str(error)) from error


def read_piece(folder: Path, piece: Piece) -> bytes:
    """The whole content of a piece. Raises CheckpointUnusable where size or hash are not the manifest's."""
    try:
        data = (folder / piece.name).read_bytes()
    except OSError as error:
        raise CheckpointUnusable(piece.name, f"cannot be read: {error.strerror}") from error
    _compare(piece, len(data), blake3(data).hexdigest())
    return data


def verify(folder: Path, expected_hash: str) -> Manifest:
    """Hash every piece of `folder` in a constant amount of memory. Raises CheckpointUnusable at the first that differs."""
    manifest = read_manifest(folder, expected_hash)
    for piece in manifest.pieces:
        hasher, size = blake3(), 0
        try:
            with (folder / piece.name).open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    hasher.update(chunk)
                    size += len(chunk)
        except OSError as error:
            raise CheckpointUnusable(piece.name, f"cannot be read: {error.strerror}") from error
        _compare(piece, size, hasher.hexdigest())
    return manifest


def _compare(piece: Piece, size: int, found: str) -> None:
    """Raise unless size and hash are what the manifest says."""
    if size != piece.size:
        raise CheckpointUnusable(piece.name, f"has {size} bytes, the manifest says {piece.size}")
    if found != piece.blake3:
        raise CheckpointUnusable(piece.name, f"its BLAKE3 is {found}, the manifest says {piece.blake3}")
