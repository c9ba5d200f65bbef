"""The manifest of a checkpoint: one JSON object that says what the folder contains, and when and why it was made.

Everything that differs between two equal states (ids, times, digests) is here, so that tensor files do not contain it.
Promises: an older reader ignores unknown fields. Another format is refused by name. The Merkle root is that of the
manifest's pieces and execution context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

import msgspec
from blake3 import blake3

from tolariad.core.checkpoints.words import HealthStatus, Piece
from tolariad.core.text.plain import rfc3339

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


_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"
_ROOT: Final = b"\x02"


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `offset`: its position in the concatenation of all files; `len`: bytes; `blake3`: in hexadecimal."""

    name: str
    offset: int
    len: int
    blake3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Leyline's CheckpointMetadata; its `schema` is called `format`. docs/checkpoints.md explains each field.

    `epoch` and `batch` say what comes next: batch `batch` + 1 of `epoch`. `created` is `created_ns` for people.
    `health` is the run's HealthStatus when the checkpoint was ordered, `pruning_phase` Leyline's number.
    `promoted_good` is false: promotion needs healthy steps after the checkpoint, and the manifest never changes after
    it is written. `promoted_checkpoint_id` is the newest checkpoint that was promoted when this one was ordered, or
    empty. `sizes` adds up bytes by group. `aliases` maps the further names of a tied tensor to the one under which it
    is stored. `cut` holds, by group, the shapes of tensors that lie in several files. `transient` are buffers that the
    model's state_dict leaves out. `compactions`: how often masked channels were removed from the model. `acted` holds
    the causes of the newest boundary orders that the state contains, as keys. A number of the journal is not a part of
    the state.
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
    health: int = HealthStatus.UNKNOWN
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
    def pieces(self) -> tuple[Piece, ...]:
        """The files, in the form that events use."""
        return tuple(Piece(name=chunk.name, size=chunk.len, blake3=chunk.blake3) for chunk in self.chunks)

    @property
    def size(self) -> int:
        """Total size of all pieces, in bytes."""
        return sum(chunk.len for chunk in self.chunks)

    @property
    def context(self) -> dict[str, str]:
        """The execution context, in the form that is hashed into the root."""
        return {name: str(getattr(self, name)) for name in _CONTEXT}

    def group(self, name: str) -> tuple[Piece, ...]:
        """Return the files of the group `name`, in order; empty if there is no such group."""
        return tuple(piece for piece in self.pieces if group_of(piece.name) == name)


def file_of(group: str, number: int) -> str:
    """Return the name of a group's file `number`. File 0 has the name of the group."""
    path = PurePath(group)
    return f"{path.stem}.{number:03d}{path.suffix}" if number else group


def group_of(file: str) -> str:
    """Return the group of a file."""
    path = PurePath(file)
    stem, dot, number = path.stem.rpartition(".")
    return f"{stem}{path.suffix}" if dot and number.isdecimal() else file


def complete(manifest: Manifest, pieces: tuple[Piece, ...]) -> Manifest:
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


def piece_leaf(piece: Piece) -> bytes:
    """Return the leaf of one file: a hash of its name, its size and its BLAKE3."""
    size = piece.size.to_bytes(8, "little")
    return blake3(_LEAF + b"piece" + _field(piece.name.encode()) + size + _field(piece.blake3.encode())).digest()


def context_leaf(context: Mapping[str, str]) -> bytes:
    """Return the leaf of the execution context: a hash of its names and values, sorted by name."""
    fields = b"".join(_field(name.encode()) + _field(value.encode()) for name, value in sorted(context.items()))
    return blake3(_LEAF + b"context" + fields).digest()


def merkle_root(pieces: Sequence[Piece], context: Mapping[str, str]) -> str:
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
    found = _format_decoder.decode(data).format
    if found != FORMAT:
        raise ValueError(f"the format is {found!r}; this version reads {FORMAT!r}")
    manifest = _decoder.decode(data)
    for chunk in manifest.chunks:
        if "/" in chunk.name or chunk.name in {"", ".", "..", FILE_NAME}:
            raise ValueError(f"{chunk.name!r} is not a valid name of a piece")
    root = merkle_root(manifest.pieces, manifest.context)
    if manifest.merkle_root != root:
        raise ValueError(f"the Merkle root is {manifest.merkle_root!r}, but pieces and context give {root}")
    return manifest
