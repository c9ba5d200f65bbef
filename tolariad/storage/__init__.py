"""Checkpoint files: the content of a checkpoint's folder, how it is written durably, how it is verified.

Promises: a folder under its final name is complete and synced. Nothing is used before its BLAKE3 was compared.
"""

from tolariad.storage.copy import copy_checkpoint
from tolariad.storage.manifest import Manifest
from tolariad.storage.pace import Pace
from tolariad.storage.remove import held
from tolariad.storage.verify import CheckpointUnfit, CheckpointUnusable, map_piece, read_manifest
from tolariad.storage.write import CheckpointWriter, remove_partial

__all__ = [
    "CheckpointUnfit",
    "CheckpointUnusable",
    "CheckpointWriter",
    "Manifest",
    "Pace",
    "copy_checkpoint",
    "held",
    "map_piece",
    "read_manifest",
    "remove_partial",
]
