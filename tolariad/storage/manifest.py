"""The manifest of a checkpoint: one JSON object that says what the folder contains, and when and why it was made.

Everything that differs between two equal states (ids, times, digests) is here, so that tensor files do not contain it.
Promises: an older reader ignores unknown fields. Another format is refused by name. The Merkle root is that of the
manifest's pieces and execution context. Whatever the bytes are, `decode_manifest` returns a manifest that a run can
have written, or raises ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import msgspec
from blake3 import blake3

from tolariad.core import messages as m
from tolariad.core.calc.bounds import COUNT_MAX, EPOCH_MAX
from tolariad.core.calc.text.plain import rfc3339

FORMAT: Final = "tolaria_3.1_c020"
FILE_NAME: Final = "manifest.json"
# Groups of pieces whose names are used outside the trainer too. The number is the rank's.
MODEL_PIECE: Final = "model-00000.safetensors"
AVERAGE_PIECE: Final = "ema-00000.safetensors"
SEEDS_PIECE: Final = "seeds-00000.safetensors"
MASKS_PIECE: Final = "masks-00000.safetensors"
STATE_PIECE: Final = "state-00000.msgpack"
# Before the names of the seeds' parameters and buffers, and of their averages, in the piece of the seeds.
OF_MODEL: Final = "model."
OF_AVERAGE: Final = "average."
# Leyline's number: nothing is pruned.
PRUNING_DISABLED: Final = 3
_CONTEXT: Final = (
    *("training_run_id", "model_hash", "task_hash", "config_hash"),
    *("code_version", "toolchain_version", "hardware_profile", "torch_threads"),
)


# A piece lies in its checkpoint's folder, and its name needs no escape anywhere.
_PIECE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"
_ROOT: Final = b"\x02"


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One file.

    * `offset`: its position in the concatenation of all files, in bytes.
    * `len`: its length in bytes.
    * `blake3`: its BLAKE3 hash, in hexadecimal.
    """

    name: str
    offset: int
    len: int
    blake3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Leyline's CheckpointMetadata; its `schema` is called `format`. docs/checkpoints.md explains each field.

    * `epoch`, `batch`: what comes next: batch `batch` + 1 of `epoch`.
    * `acted`: the causes of the newest boundary orders that the state contains, as keys. They are numbers of the
      journal, and so no part of the state.
    * `created`: `created_ns` for people.
    * `health`: the run's HealthStatus when the checkpoint was ordered.
    * `pruning_phase`: Leyline's number.
    * `promoted_good`: always false. Promotion needs healthy steps after the checkpoint, and the manifest never changes
      after it is written.
    * `promoted_checkpoint_id`: the newest checkpoint that was promoted when this one was ordered, or empty.
    * `sizes`: the bytes of each group.
    * `aliases`: for each further name of a tied tensor the name under which it is stored.
    * `cut`: the shapes of tensors that lie in several files, by group.
    * `transient`: buffers that the model's state_dict leaves out.
    * `compactions`: the number of times that masked channels were removed from the model.
    """

    format: str = FORMAT
    checkpoint_id: str
    parent_checkpoint_id: str
    training_run_id: str
    branch: int = 0
    epoch: int
    batch: int
    global_step: int
    acted: tuple[int, ...] = ()
    reason: str
    created_ns: int
    created: str = ""
    health: int = m.HealthStatus.UNKNOWN
    promoted_good: bool = False
    promoted_checkpoint_id: str = ""
    rollback_capable: bool = True
    rng_captured: bool = True
    pruning_phase: int = PRUNING_DISABLED
    cumulative_pruned_fraction: float = 0.0
    mask_ref: str | None = None
    compactions: int = 0
    importance_ref: str | None = None
    merkle_root: str = ""
    model_hash: str
    task_hash: str = ""
    config_hash: str = ""
    code_version: str = ""
    toolchain_version: str = ""
    hardware_profile: str = ""
    torch_threads: int = 0
    ranks: int = 1
    sizes: dict[str, int] = {}
    chunks: tuple[Chunk, ...]
    aliases: dict[str, str] = {}
    cut: dict[str, dict[str, tuple[int, ...]]] = {}
    transient: tuple[str, ...] = ()

    @property
    def pieces(self) -> tuple[m.Piece, ...]:
        """The files, in the form that events use."""
        return tuple(m.Piece(name=chunk.name, size=chunk.len, blake3=chunk.blake3) for chunk in self.chunks)

    @property
    def size(self) -> int:
        """Total size of all pieces, in bytes."""
        return sum(chunk.len for chunk in self.chunks)

    @property
    def context(self) -> dict[str, str]:
        """The execution context, in the form that is hashed into the root."""
        return {name: str(getattr(self, name)) for name in _CONTEXT}

    def group(self, name: str) -> tuple[m.Piece, ...]:
        """Return the files of the group `name`, in order; empty if there is no such group."""
        return tuple(piece for piece in self.pieces if group_of(piece.name) == name)


def check_id(checkpoint_id: str) -> None:
    """Raise ValueError if this cannot be the name of a checkpoint's folder."""
    if not checkpoint_id or checkpoint_id.startswith(".") or not {"/", "\0"}.isdisjoint(checkpoint_id):
        raise ValueError(f"{checkpoint_id[:200]!r} cannot be the name of a checkpoint's folder")


def file_of(group: str, number: int) -> str:
    """Return the name of a group's file `number`. File 0 has the name of the group."""
    path = PurePath(group)
    return f"{path.stem}.{number:03d}{path.suffix}" if number else group


def group_of(file: str) -> str:
    """Return the group of a file."""
    path = PurePath(file)
    stem, dot, number = path.stem.rpartition(".")
    return f"{stem}{path.suffix}" if dot and number.isdecimal() else file


def complete(manifest: Manifest, pieces: tuple[m.Piece, ...]) -> Manifest:
    """Return the manifest with its derived fields: chunks, sizes, time as text, Merkle root."""
    chunks: list[Chunk] = []
    sizes: dict[str, int] = {}
    offset = 0
    for piece in pieces:
        chunks.append(Chunk(name=piece.name, offset=offset, len=piece.size, blake3=piece.blake3))
        offset += piece.size
        sizes[group_of(piece.name)] = sizes.get(group_of(piece.name), 0) + piece.size
    return msgspec.structs.replace(
        manifest,
        chunks=tuple(chunks),
        sizes=sizes,
        created=rfc3339(manifest.created_ns),
        merkle_root=merkle_root(pieces, manifest.context),
    )


# The Merkle root: one hash over every piece and over the execution context. Leaves, nodes and the root have different
# prefixes, so that none can be presented as another. Leaves are sorted. An odd leaf moves up as it is (it is never
# duplicated). The number of leaves is part of the root.
def _field(data: bytes) -> bytes:
    """Prefix the field with its length, so that different lists of fields never give the same bytes."""
    return len(data).to_bytes(8, "little") + data


def piece_leaf(piece: m.Piece) -> bytes:
    """Return the leaf of one file: a hash of its name, its size and its BLAKE3."""
    size = piece.size.to_bytes(8, "little")
    return blake3(_LEAF + b"piece" + _field(piece.name.encode()) + size + _field(piece.blake3.encode())).digest()


def context_leaf(context: Mapping[str, str]) -> bytes:
    """Return the leaf of the execution context: a hash of its names and values, sorted by name."""
    fields = b"".join(_field(name.encode()) + _field(value.encode()) for name, value in sorted(context.items()))
    return blake3(_LEAF + b"context" + fields).digest()


def merkle_root(pieces: Sequence[m.Piece], context: Mapping[str, str]) -> str:
    """Return the root in hexadecimal. It does not depend on the order of `pieces`."""
    level = sorted([*map(piece_leaf, pieces), context_leaf(context)])
    count = len(level).to_bytes(8, "little")
    while len(level) > 1:
        paired = [blake3(_NODE + one + two).digest() for one, two in zip(level[::2], level[1::2], strict=False)]
        level = [*paired, *level[len(paired) * 2 :]]
    return blake3(_ROOT + count + level[0]).hexdigest()


class _Format(msgspec.Struct, frozen=True):
    format: str


_decoder = msgspec.json.Decoder(Manifest)
_format_decoder = msgspec.json.Decoder(_Format)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON with a final newline, readable by people."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises ValueError, naming the wrong field or the other format."""
    try:
        found = _format_decoder.decode(data).format
        if found != FORMAT:
            raise ValueError(f"the format is {found!r}; this version reads {FORMAT!r}")
        manifest = _decoder.decode(data)
        # msgspec takes the last of two equal names, other readers the first.
        json.loads(data, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    _check_numbers(manifest)
    _check_chunks(manifest)
    root = merkle_root(manifest.pieces, manifest.context)
    if manifest.merkle_root != root:
        raise ValueError(f"the Merkle root is {manifest.merkle_root!r}, but pieces and context give {root}")
    return manifest


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"it has two values for {twice!r}")


def _check_numbers(manifest: Manifest) -> None:
    """Raise ValueError for a number that no run writes."""
    counts = {"global_step": manifest.global_step, "batch": manifest.batch, "branch": manifest.branch}
    counts |= {f"sizes.{group}": size for group, size in manifest.sizes.items()}
    bounds = [(name, value, COUNT_MAX) for name, value in counts.items()]
    bounds += [("epoch", manifest.epoch, EPOCH_MAX), ("compactions", manifest.compactions, COUNT_MAX)]
    shapes = (shape for tensors in manifest.cut.values() for shape in tensors.values())
    bounds += [("a dimension in cut", size, COUNT_MAX) for shape in shapes for size in shape]
    for name, value, most in bounds:
        if not 0 <= value <= most:
            raise ValueError(f"{name} must be from 0 to {most}")


def _check_chunks(manifest: Manifest) -> None:
    """Raise ValueError unless the pieces are distinct files of the folder, one after the other."""
    seen: set[str] = set()
    offset = 0
    for chunk in manifest.chunks:
        if not _PIECE_NAME.fullmatch(chunk.name) or chunk.name == FILE_NAME:
            raise ValueError(f"{chunk.name[:200]!r} is not a valid name of a piece")
        if chunk.name in seen:
            raise ValueError(f"it names {chunk.name} twice")
        if not 0 <= chunk.len <= COUNT_MAX:
            raise ValueError(f"the length of {chunk.name} must be from 0 to {COUNT_MAX}")
        if chunk.offset != offset:
            raise ValueError(f"{chunk.name} must begin at {offset}")
        seen.add(chunk.name)
        offset += chunk.len
