"""Export the weights of a checkpoint as one safetensors file, readable without torch and without tolariad.

The file holds the tensors of the model's state_dict: a tied tensor under each of its names, and no buffers that are
not persistent. Promises: every byte is compared with its hash before it is written. The file appears complete or not
at all.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from tolariad.storage.grown import Fossil, compactions, fossils
from tolariad.storage.manifest import (
    AVERAGE_PIECE,
    FILE_NAME,
    MODEL_PIECE,
    OF_AVERAGE,
    OF_MODEL,
    SEEDS_PIECE,
    STATE_PIECE,
    Manifest,
)
from tolariad.storage.tensor_file import Tensor, content, parse
from tolariad.storage.verify import CheckpointUnusable, map_piece, read_manifest

_Found = TypeVar("_Found")


class Weights(enum.Enum):
    """Which weights of a checkpoint: the trained ones, or their moving average."""

    TRAINED = "trained"
    AVERAGED = "averaged"


class NoAverage(Exception):
    """The checkpoint contains no moving average."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The result: number of tensors, size of the file in bytes, the checkpoint's manifest.

    `seeds` names the slots whose seeds are a part of the model. `compactions` is the number of times that channels were
    removed from it. The file's metadata says how to build such a model.
    """

    tensors: int
    size: int
    manifest: Manifest
    seeds: tuple[str, ...] = ()
    compactions: int = 0


def export_weights(
    folder: Path, manifest_hash: str, weights: Weights, target: Path, *, promoted: bool = False
) -> Exported:
    """Write the weights in checkpoint `folder` to `target`, replacing it. `promoted`: the journal says that it is good.

    Raises CheckpointUnusable, NoAverage, OSError.
    """
    manifest = read_manifest(folder, manifest_hash)
    tensors = _tensors(folder, manifest, MODEL_PIECE)
    if weights is Weights.AVERAGED:
        tensors |= _tensors(folder, manifest, AVERAGE_PIECE)
    of_seeds = _tensors(folder, manifest, SEEDS_PIECE) if manifest.group(SEEDS_PIECE) else {}
    state = _state(folder, manifest) if of_seeds or manifest.compactions else None
    grown = _read(state, fossils) if state is not None and of_seeds else ()
    cut = _read(state, compactions) if state is not None and manifest.compactions else ()
    tensors |= _of_fossils(of_seeds, grown, weights)
    for alias, holder in manifest.aliases.items():
        if holder not in tensors and f"{OF_MODEL}{holder}" in of_seeds:
            continue  # of a seed that is not a part of the model yet
        if holder not in tensors:
            raise CheckpointUnusable(
                "manifest.json", f"{alias} is tied to {holder}, which the checkpoint does not contain"
            )
        # setdefault: a parameter that shares memory under a second name has an average of its own.
        held = tensors[holder]
        tensors.setdefault(alias, held._replace(entry=msgspec.structs.replace(held.entry, name=alias)))
    for name in manifest.transient:
        tensors.pop(name, None)
    labels = _labels(manifest, weights, grown, cut) | ({"promoted_good": "true"} if promoted else {})
    size = _write(target, tensors, labels)
    slots = tuple(one.slot for one in grown)
    return Exported(tensors=len(tensors), size=size, manifest=manifest, seeds=slots, compactions=len(cut))


def _state(folder: Path, manifest: Manifest) -> bytes:
    """Return what a checkpoint holds besides tensors. Raises CheckpointUnusable."""
    (piece,) = manifest.group(STATE_PIECE)
    return bytes(map_piece(folder, piece))


def _read(state: bytes, read: Callable[[bytes], tuple[_Found, ...]]) -> tuple[_Found, ...]:
    """Return what `read` finds in the state. Raises CheckpointUnusable."""
    try:
        return read(state)
    except ValueError as error:
        raise CheckpointUnusable(STATE_PIECE, str(error)) from error


def _of_fossils(held: dict[str, Tensor], grown: tuple[Fossil, ...], weights: Weights) -> dict[str, Tensor]:
    """Return the tensors of these seeds, by their names in the model."""
    found = {}
    for kind in (OF_MODEL, OF_AVERAGE) if weights is Weights.AVERAGED else (OF_MODEL,):
        for name, tensor in held.items():
            own = name.removeprefix(kind)
            if own != name and own.startswith(tuple(one.prefix for one in grown)):
                found[own] = tensor._replace(entry=msgspec.structs.replace(tensor.entry, name=own))
    return found


def _tensors(folder: Path, manifest: Manifest, group: str) -> dict[str, Tensor]:
    pieces = manifest.group(group)
    if not pieces and group == AVERAGE_PIECE:
        raise NoAverage(f"checkpoint {manifest.checkpoint_id} contains no moving average")
    if not pieces:
        raise CheckpointUnusable(group, "is not among the pieces of this checkpoint")
    rows: dict[str, list[Tensor]] = {}
    for piece in pieces:
        try:
            for name, tensor in parse(map_piece(folder, piece)).items():
                rows.setdefault(name, []).append(tensor)
        except ValueError as error:
            raise CheckpointUnusable(piece.name, str(error)) from error
    shapes = manifest.cut.get(group, {})
    return {name: _joined(held, shapes[name]) if name in shapes else held[0] for name, held in rows.items()}


def _joined(rows: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Join the rows of a tensor that is stored in several files."""
    data = memoryview(b"".join(row.data for row in rows))
    held = sum(math.prod(row.entry.shape) for row in rows)
    if held != math.prod(shape):
        raise CheckpointUnusable(FILE_NAME, f"{rows[0].entry.name} has {held} elements, not those of its shape")
    return Tensor(msgspec.structs.replace(rows[0].entry, shape=shape, size=len(data)), data)


def _labels(manifest: Manifest, weights: Weights, grown: tuple[Fossil, ...], cut: tuple[str, ...]) -> dict[str, str]:
    """Return the origin of the weights. Other programs read `format` before they load the file."""
    return {
        **({"seeds": msgspec.json.encode(grown).decode()} if grown else {}),
        **({"compactions": msgspec.json.encode(cut).decode()} if cut else {}),
        "format": "pt",
        "run": manifest.training_run_id,
        "checkpoint": manifest.checkpoint_id,
        "step": str(manifest.global_step),
        "weights": weights.value,
    }


def _write(target: Path, tensors: dict[str, Tensor], labels: dict[str, str]) -> int:
    """Write to a temporary file, sync it, rename it. Return its size."""
    aside = target.with_name(f".{target.name}.partial")
    try:
        with aside.open("wb") as file:
            file.writelines(content(tensors.values(), labels))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return size
