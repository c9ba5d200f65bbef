"""Checkpoint files: what a checkpoint's folder holds, how it is written so that it survives, how it is verified.

Promises: a folder under its final name is complete and synced; nothing is used before its BLAKE3 was compared.
It must not know: torch, the journal, which checkpoint is the current one.
"""

from tolariad.storage.copy import copy_checkpoint
from tolariad.storage.export import Exported, NoAverage, Weights, export_weights
from tolariad.storage.manifest import FORMAT, Manifest, decode_manifest, encode_manifest
from tolariad.storage.verify import CheckpointUnusable, read_manifest, read_piece, verify
from tolariad.storage.write import CheckpointWriter, remove_partial

__all__ = [
    "FORMAT",
    "CheckpointUnusable",
    "CheckpointWriter",
    "Exported",
    "Manifest",
    "NoAverage",
    "Weights",
    "copy_checkpoint",
    "decode_manifest",
    "encode_manifest",
    "export_weights",
    "read_manifest",
    "read_piece",
    "remove_partial",
    "verify",
]
