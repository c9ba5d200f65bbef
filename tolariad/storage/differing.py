"""Which tensors of two checkpoints differ: by the hashes of their files first, then by their bytes.

Promises: no file is believed before its hash was compared with its manifest. Only files that differ are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tolariad.core import messages as m
from tolariad.storage.manifest import Manifest
from tolariad.storage.tensor_file import parse
from tolariad.storage.verify import map_piece, read_manifest

_TENSORS: Final = ".safetensors"
# Weights and moments first: the rest of the state follows from them.
_FIRST: Final = ("model", "optimizer")


def differing_tensors(a: Path, hash_a: str, b: Path, hash_b: str) -> list[str]:
    """Return `FILE: TENSOR` for each tensor whose bytes differ; a file that is no tensors' by its name alone.

    `hash_a`, `hash_b`: the BLAKE3 of the manifests. Raises CheckpointUnusable.
    """
    one, other = _pieces(read_manifest(a, hash_a)), _pieces(read_manifest(b, hash_b))
    names = sorted(one.keys() | other.keys(), key=lambda name: (not name.startswith(_FIRST), name))
    found: list[str] = []
    for name in names:
        mine, others = one.get(name), other.get(name)
        if mine is not None and others is not None and mine.blake3 == others.blake3:
            continue
        if mine is None or others is None or not name.endswith(_TENSORS):
            found.append(name)
        else:
            found += [f"{name}: {tensor}" for tensor in _tensors(map_piece(a, mine), map_piece(b, others))]
    return found


def _pieces(manifest: Manifest) -> dict[str, m.Piece]:
    return {one.name: one for one in manifest.pieces}


def _tensors(a: memoryview, b: memoryview) -> list[str]:
    mine, others = parse(a), parse(b)
    return [
        name
        for name in sorted(mine.keys() | others.keys())
        if name not in mine or name not in others or mine[name].data != others[name].data
    ]
