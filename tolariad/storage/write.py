"""Write a checkpoint into a folder with a temporary name, and rename the folder when every byte is on disk.

Order: pieces (each synced), manifest (synced), the temporary folder (synced), rename, the parent folder (synced). So a
folder under its final name is always complete, even if the power fails at any moment. This module gets bytes; it does
not deal with tensors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from blake3 import blake3

from tolariad import run_files
from tolariad.core import messages as m
from tolariad.storage.manifest import FILE_NAME, Manifest, check_id, complete, encode_manifest
from tolariad.storage.pace import Pace


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partial(root: Path) -> list[str]:
    """Remove the half written folders of dead trainers under `root` and return their names. Needs the run's lock."""
    left = sorted(path for path in root.glob(".*.partial"))
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in left]


class CheckpointWriter:
    """Writes one checkpoint to `<root>/<id>`. Use as a context manager: if it was not published, leaving removes it."""

    def __init__(self, root: Path, checkpoint_id: str, pace: Pace | None = None) -> None:
        check_id(checkpoint_id)
        self._root = root
        self._final = root / checkpoint_id
        self._partial = root / f".{checkpoint_id}.partial"  # its name while it is being written
        self._pace = pace or Pace()
        self._pieces: list[m.Piece] = []
        self._published = False

    def __enter__(self) -> Self:
        # Do not create parents: if the run's folder was deleted, it must not reappear with only a checkpoint in it.
        if not self._root.is_dir():
            run_files.make_folder(self._root.parent, self._root.name)
        # A folder of this name was left by a dead trainer. Only one trainer writes here at a time.
        shutil.rmtree(self._partial, ignore_errors=True)
        run_files.make_folder(self._root, self._partial.name)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            shutil.rmtree(self._partial, ignore_errors=True)

    @property
    def pieces(self) -> tuple[m.Piece, ...]:
        """The pieces written so far."""
        return tuple(self._pieces)

    def add(self, name: str, chunks: Iterable[bytes | memoryview]) -> m.Piece:
        """Write, hash and sync one piece. Raises OSError, and any exception of the pace's tick."""
        hasher, size = blake3(), 0
        with self._created(name) as descriptor:
            for chunk in chunks:
                size = self._write(descriptor, memoryview(chunk), size, hasher)
            os.fsync(descriptor)
        piece = m.Piece(name=name, size=size, blake3=hasher.hexdigest())
        self._pieces.append(piece)
        return piece

    @contextmanager
    def _created(self, name: str) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = run_files.open_file(self._root, f"{self._partial.name}/{name}", flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, chunk: memoryview, offset: int, hasher: blake3) -> int:
        """Write and hash `chunk` in parts. Return the new end of the file.

        Each part ends at a multiple of the part's size in the file. The page cache then keeps it in one large page, and
        verifying or mapping the file takes a fifth less time.
        """
        first = 0
        while first < len(chunk):
            step = self._pace.piece_bytes
            part = chunk[first : first + step - offset % step]
            first += len(part)
            self._pace.wait(len(part))
            write_all(descriptor, part)
            # Start the transfer to the disk now, so that it runs while the part is hashed.
            self._pace.written(descriptor, offset, len(part))
            hasher.update(part)
            offset += len(part)
        return offset

    def write_manifest(self, manifest: Manifest) -> tuple[str, Manifest]:
        """Add the written pieces to the manifest, write it and sync it. Return its BLAKE3 and the complete manifest.

        No piece may be added afterwards.
        """
        whole = complete(manifest, self.pieces)
        data = encode_manifest(whole)
        with self._created(FILE_NAME) as descriptor:
            write_all(descriptor, memoryview(data))
            os.fsync(descriptor)
        sync_folder(self._partial)
        return blake3(data).hexdigest(), whole

    def publish(self) -> None:
        """Rename the folder to its final name, durably. An uncommitted folder of that name is removed first.

        Raises OSError. In that case neither name exists.
        """
        shutil.rmtree(self._final, ignore_errors=True)
        self._partial.rename(self._final)
        try:
            sync_folder(self._root)
        except OSError:
            # The name may not survive a power cut, so the checkpoint must not be committed. Remove the folder.
            shutil.rmtree(self._final, ignore_errors=True)
            raise
        self._published = True


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all bytes. A single write() may write only a part."""
    while data:
        data = data[os.write(descriptor, data) :]
