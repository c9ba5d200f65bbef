"""Checkpoints with pruning metadata, for programs that keep their own: written, verified and retained, without a daemon.

Arrays are NumPy's (or anything that NumPy takes, a torch CPU tensor too); this room knows no torch. Promises: a folder is
whole and verified when its id is returned; the quota and ages are those of core.retention; what goes wrong is raised, with
what it was. It must not know: which checkpoint a run trains from; that, and recording it, is the kernel's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import tolariad
from tolariad.core import retention
from tolariad.core.catalogue import Entry
from tolariad.core.checkpoints import Checkpoints
from tolariad.core.vocabulary.checkpoints import CheckpointReason
from tolariad.core.vocabulary.run import Policy
from tolariad.storage.manifest import (
    FILE_NAME,
    IMPORTANCE_PIECE,
    MASK_PIECE,
    PHASE_VALIDATION_ONLY,
    Manifest,
    decode_manifest,
)
from tolariad.storage.remove import remove
from tolariad.storage.tensor_file import Entry as TensorEntry
from tolariad.storage.tensor_file import header, layout
from tolariad.storage.verify import verify
from tolariad.storage.write import CheckpointWriter

DATA_PIECE: Final = "data-00000.safetensors"
TREE_PIECE: Final = "data-00000.msgpack"
_DTYPES: Final = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u8": "U64",
    "u4": "U32",
    "u2": "U16",
    "u1": "U8",
    "b1": "BOOL",
}


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where checkpoints lie, and the configuration's own fields about how long."""

    folder: str
    checkpoint_storage_quota_gb: float = 100.0
    keep_last: int = 3
    keep_days: float = 7.0
    importance_days: float = 30.0
    training_run_id: str = ""
    model_hash: str = ""

    @property
    def policy(self) -> Policy:
        """What retention goes by."""
        return Policy(
            epochs=1,
            keep_last=self.keep_last,
            keep_days=self.keep_days,
            importance_days=self.importance_days,
            quota=int(self.checkpoint_storage_quota_gb * 1e9),
        )


class PruningMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning knows at a checkpoint: Leyline's phase, the share pruned so far, masks and importance by name."""

    phase: int = PHASE_VALIDATION_ONLY
    cumulative_pruned_fraction: float = 0.0
    masks: dict[str, Any] = {}
    importance: dict[str, Any] = {}


class CheckpointStorageManager:
    """`config`: a StorageConfig, or a mapping with its fields. `restore` carries out a rollback to an epoch."""

    def __init__(
        self,
        config: StorageConfig | Mapping[str, Any],
        *,
        restore: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        self._config = config if isinstance(config, StorageConfig) else msgspec.convert(dict(config), StorageConfig)
        self._root = Path(self._config.folder)
        self._restore = restore
        self.manifests: dict[str, str] = {}

    async def save_checkpoint_with_pruning_metadata(
        self,
        epoch: int,
        checkpoint_data: Mapping[str, Any],
        pruning_metadata: PruningMetadata | None = None,
    ) -> str:
        """Write one and verify it, then apply retention; the name of its folder. `manifests` then has its BLAKE3.

        Raises TypeError for values that are neither plain nor arrays, ValueError for dtypes no file can hold, OSError.
        """
        return await asyncio.to_thread(self._save, epoch, checkpoint_data, pruning_metadata or PruningMetadata())

    async def coordinate_emergency_rollback(self, target_epoch: int) -> bool:
        """Hand a rollback to `restore`, and say whether it was done. Raises RuntimeError where there is none."""
        if self._restore is None:
            raise RuntimeError("nobody was given that could restore a checkpoint; pass restore= when this is made")
        return await self._restore(target_epoch)

    def _save(self, epoch: int, data: Mapping[str, Any], pruning: PruningMetadata) -> str:
        now = time.time_ns()
        # Two in one epoch are two checkpoints.
        id_ = f"e{epoch:06d}-{now}"
        arrays: dict[str, np.ndarray] = {}
        tree = msgspec.msgpack.encode(_taken_apart(dict(data), "", arrays))
        with CheckpointWriter(self._root, id_) as writer:
            writer.add(DATA_PIECE, _file(arrays))
            if pruning.masks:
                writer.add(MASK_PIECE, _file(_arrays(pruning.masks)))
            if pruning.importance:
                writer.add(IMPORTANCE_PIECE, _file(_arrays(pruning.importance)))
            writer.add(TREE_PIECE, [tree])
            manifest_hash, _ = writer.write_manifest(self._manifest(id_, epoch, now, pruning))
            writer.publish()
        verify(self._root / id_, manifest_hash)
        self.manifests[id_] = manifest_hash
        self._retain(now)
        return id_

    def _manifest(self, id_: str, epoch: int, now: int, pruning: PruningMetadata) -> Manifest:
        return Manifest(
            checkpoint_id=id_,
            parent_checkpoint_id=next(reversed(self.manifests), ""),
            training_run_id=self._config.training_run_id,
            epoch=epoch,
            batch=0,
            global_step=0,
            applied_cause=0,
            reason=CheckpointReason.ORDERED.value,
            created_ns=now,
            rng_captured=False,
            pruning_phase=pruning.phase,
            cumulative_pruned_fraction=pruning.cumulative_pruned_fraction,
            mask_ref=MASK_PIECE if pruning.masks else None,
            importance_ref=IMPORTANCE_PIECE if pruning.importance else None,
            model_hash=self._config.model_hash,
            code_version=tolariad.__version__,
            chunks=(),
        )

    def _retain(self, now: int) -> None:
        """Remove what is to go of those that were written here."""
        entries = sorted((e for p in self._root.glob(f"e*/{FILE_NAME}") if (e := _entry(p))), key=lambda e: e.wall)
        numbered = tuple(msgspec.structs.replace(e, committed_seq=n) for n, e in enumerate(entries))
        for one in retention.plan(Checkpoints(catalogue=numbered), self._config.policy, now):
            remove(self._root, one.entry.id, (IMPORTANCE_PIECE,) if one.keeps_importance else ())


def _entry(path: Path) -> Entry | None:
    """A checkpoint of this folder as retention sees it; None where its manifest cannot be read."""
    try:
        manifest = decode_manifest(path.read_bytes())
    except (OSError, ValueError):
        # Not one of ours, or damaged: nothing that is not understood is removed.
        return None
    importance = manifest.sizes.get(IMPORTANCE_PIECE, 0)
    reduced = not (path.parent / TREE_PIECE).exists()
    return Entry(
        id=path.parent.name,
        reason=CheckpointReason.ORDERED,
        manifest="",
        size=importance if reduced else manifest.size,
        wall=manifest.created_ns,
        importance=importance,
        reduced=reduced,
        step=0,
        epoch=manifest.epoch,
        batch=0,
        branch=0,
        begun_seq=0,
        committed_seq=0,
    )


def _taken_apart(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Plain data for msgpack; arrays go into `arrays`, their place is kept by `{"array": name}`."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Mapping):
        return {str(key): _taken_apart(item, f"{path}.{key}".lstrip("."), arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_taken_apart(item, f"{path}.{number}".lstrip("."), arrays) for number, item in enumerate(value)]
    array = np.ascontiguousarray(value) if hasattr(value, "__array__") else None
    if array is None:
        raise TypeError(f"{path}: a {type(value).__name__} cannot be written; give plain data and arrays")
    arrays[path] = array
    return {"array": path}


def _arrays(named: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(value) for name, value in named.items()}


def _file(arrays: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """A safetensors file of these arrays. Raises ValueError for a dtype that it has no name for."""
    entries = []
    for name, array in arrays.items():
        dtype = _DTYPES.get(array.dtype.newbyteorder("<").str.lstrip("<|"))
        if dtype is None or array.dtype.byteorder == ">":
            raise ValueError(f"{name}: an array of dtype {array.dtype} cannot be written")
        size = array.dtype.itemsize
        entries.append(TensorEntry(name=name, dtype=dtype, shape=array.shape, size=array.nbytes, element_size=size))
    placed = layout(entries)
    return [header(placed), *(arrays[one.name].tobytes() for one in placed)]
