"""Checkpoint files: what a checkpoint's folder holds, how it is written so that it survives, how it is verified.

Promises: a folder under its final name is complete and synced; nothing is used before its BLAKE3 was compared.
It must not know: torch, the journal, which checkpoint is the current one.
"""

from typing import TYPE_CHECKING, Any

from tolariad.storage.copy import copy_checkpoint
from tolariad.storage.export import Exported, NoAverage, Weights, export_weights
from tolariad.storage.manifest import FORMAT, Manifest, decode_manifest, encode_manifest
from tolariad.storage.pace import Pace
from tolariad.storage.remove import InUse, held, remove, sweep
from tolariad.storage.verify import CheckpointUnfit, CheckpointUnusable, map_piece, read_manifest, verify
from tolariad.storage.write import CheckpointWriter, remove_partial

if TYPE_CHECKING:
    from tolariad.storage.manager import CheckpointStorageManager

__all__ = [
    "FORMAT",
    "CheckpointStorageManager",
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


def __getattr__(name: str) -> Any:
    # Reading commands use this room, and neither asyncio nor NumPy, which the manager needs.
    if name == "CheckpointStorageManager":
        from tolariad.storage.manager import CheckpointStorageManager

        return CheckpointStorageManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
