"""The manifest of a checkpoint: one JSON object that says what the folder holds and when, where and why it was made.

Everything that varies between two equal states (ids, times, digests) stands here, so that tensor files need not.
Promises: an older reader passes by fields it does not know; another format is named, never guessed at.
It must not know: how files are written.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tolariad.core.vocabulary.checkpoints import Piece

FORMAT: Final = "tolaria_3.1_c020"
FILE_NAME: Final = "manifest.json"
# The pieces that more rooms than the trainer know by name. The number is the rank's.
MODEL_PIECE: Final = "model-00000.safetensors"
AVERAGE_PIECE: Final = "ema-00000.safetensors"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Leyline's CheckpointMetadata. `epoch` and `batch` say what comes next: batch `batch` + 1 of `epoch`.

    `created` is RFC 3339 with microseconds, hashes are lower-case hexadecimal; `aliases` maps the further names of a
    tied tensor to the one name under which it is stored; `transient` are the names of buffers that the model's
    state_dict leaves out; `applied_cause` is the highest order the state contains.
    """

    format: str = FORMAT
    checkpoint_id: str
    training_run_id: str
    parent_checkpoint_id: str
    created: str
    reason: str
    epoch: int
    batch: int
    global_step: int
    applied_cause: int
    model_hash: str
    pieces: tuple[Piece, ...]
    aliases: dict[str, str]
    rng_captured: bool = True
    ranks: int = 1
    branch: int = 0
    code_version: str = ""
    torch_version: str = ""
    torch_threads: int = 0
    transient: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)


_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON with a final newline: people read these files too."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises ValueError saying which field is wrong, or which format this is instead."""
    manifest = _decoder.decode(data)
    if manifest.format != FORMAT:
        raise ValueError(f"this is format {manifest.format!r}; this version reads {FORMAT!r}")
    for piece in manifest.pieces:
        if "/" in piece.name or piece.name in {"", ".", "..", FILE_NAME}:
            raise ValueError(f"{piece.name!r} cannot be the name of a piece")
    return manifest
