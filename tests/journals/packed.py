"""Where the journals of real runs are kept, and how one is unpacked."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import IO

import zstandard

_ZEROS = bytes(1 << 16)
REAL = Path(__file__).parent / "real"


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack a kept journal into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = zstandard.ZstdDecompressor().stream_reader(archive.open("rb"), closefd=True)
    with stream, tarfile.open(fileobj=stream, mode="r|") as packed:
        for entry in packed:
            _written(packed.extractfile(entry), folder / Path(entry.name).name)
    return folder


def _written(source: IO[bytes] | None, path: Path) -> None:
    """Write a file; most of a segment is zeros, which are left out."""
    assert source is not None
    with path.open("wb") as file:
        while piece := source.read(len(_ZEROS)):
            file.seek(len(piece), os.SEEK_CUR) if piece == _ZEROS[: len(piece)] else file.write(piece)
        file.truncate(file.tell())
