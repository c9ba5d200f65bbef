"""Checkpoint files: what a checkpoint's folder holds, how it is written so that it survives, how it is verified.

Promises: a folder under its final name is complete and synced; nothing is used before its BLAKE3 was compared.
It must not know: torch, the journal, which checkpoint is the current one.
"""

from tolariad.storage.copy import copy_checkpoint
from tolariad.storage.export import Exported, NoAverage, Weights, export_weights
from tolariad.storage.manifest import FORMAT, Manifest, decode_manifest, encode_manifest
from tolariad.storage.pace import Pace
from tolariad.storage.remove import InUse, held, remove, sweep
from tolariad.storage.verify import CheckpointUnfit, CheckpointUnusable, map_piece, read_manifest, verify
from tolariad.storage.write import CheckpointWriter, remove_partial

__all__ = [
    "FORMAT",
    "CheckpointUnfit",
    "CheckpointUnusable",
    "CheckpointWriter",
    "Exported",
    "InUse",
    "Manifest",
    "NoAverage",
    "Pace",
    "Weights",
    "copy_checkpoint",
    "decode_manifest",
    "encode_manifest",
    "export_weights",
    "held",
    "map_piece",
    "read_manifest",
    "remove",
    "remove_partial",
    "sweep",
    "verify",
]
