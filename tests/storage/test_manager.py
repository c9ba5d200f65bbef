"""Checkpoints of a program's own, with what pruning knows: files that any reader opens, kept within a quota."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from tolariad.storage import CheckpointStorageManager, CheckpointUnusable, read_manifest, verify
from tolariad.storage.manager import PruningMetadata

DATA = {"model": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}, "epoch": 7, "tags": ["a", 2.5, None]}
PRUNING = PruningMetadata(
    phase=2,
    cumulative_pruned_fraction=0.25,
    masks={"model.weight": np.array([[True, False, True]] * 2)},
    importance={"model.weight": np.ones(3)},
)


def save(manager, epoch=7, pruning=None):
    return asyncio.run(manager.save_checkpoint_with_pruning_metadata(epoch, DATA, pruning))


def test_data_masks_and_importance_are_files_of_their_own_that_verify(tmp_path):
    """The manifest says where they are; the phase and the epoch are whole numbers in it."""
    manager = CheckpointStorageManager({"folder": str(tmp_path), "training_run_id": "ff"})
    id_ = save(manager, pruning=PRUNING)
    manifest = verify(tmp_path / id_, manager.manifests[id_])
    assert (manifest.epoch, manifest.pruning_phase, manifest.cumulative_pruned_fraction) == (7, 2, 0.25)
    assert manifest.mask_ref is not None
    assert manifest.importance_ref is not None
    assert load_file(tmp_path / id_ / manifest.mask_ref)["model.weight"].tolist() == [[True, False, True]] * 2
    assert load_file(tmp_path / id_ / manifest.importance_ref)["model.weight"].tolist() == [1.0] * 3
    np.testing.assert_array_equal(
        load_file(tmp_path / id_ / "data-00000.safetensors")["model.weight"], DATA["model"]["weight"]
    )
    tree = msgspec.msgpack.decode((tmp_path / id_ / "data-00000.msgpack").read_bytes())
    assert tree == {"model": {"weight": {"array": "model.weight"}}, "epoch": 7, "tags": ["a", 2.5, None]}
    plain = save(manager, 8)
    assert read_manifest(tmp_path / plain, manager.manifests[plain]).parent_checkpoint_id == id_


def test_two_of_one_epoch_are_two_and_the_quota_takes_the_oldest(tmp_path):
    """The last three always stay; a folder that is not understood is left alone."""
    (tmp_path / "e-mine").mkdir()
    (tmp_path / "e-mine" / "manifest.json").write_text("{}")
    manager = CheckpointStorageManager({"folder": str(tmp_path), "checkpoint_storage_quota_gb": 1e-9})
    ids = [save(manager) for _ in range(5)]
    assert len(set(ids)) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"e-mine", *ids[-3:]}


def test_what_cannot_be_written_is_refused_by_its_path_and_nothing_is_left(tmp_path):
    """An object, and an array of objects."""
    manager = CheckpointStorageManager({"folder": str(tmp_path)})
    for value, kind, why in ((object(), TypeError, r"a\.b: a object"), (np.array([{}]), ValueError, r"a\.b: an array")):
        with pytest.raises(kind, match=why):
            asyncio.run(manager.save_checkpoint_with_pruning_metadata(1, {"a": {"b": value}}))
    assert list(tmp_path.iterdir()) == []


def test_an_emergency_rollback_is_handed_on_and_without_a_hand_refused(tmp_path):
    """Whoever restores says whether it was done."""
    asked = []

    async def restore(epoch):
        asked.append(epoch)
        return True

    manager = CheckpointStorageManager({"folder": str(tmp_path)}, restore=restore)
    assert asyncio.run(manager.coordinate_emergency_rollback(4))
    assert asked == [4]
    alone = CheckpointStorageManager({"folder": str(tmp_path)})
    with pytest.raises(RuntimeError, match="restore="):
        asyncio.run(alone.coordinate_emergency_rollback(4))


def test_damage_is_found_by_the_hash_that_was_given(tmp_path):
    """The name of the file is in the error."""
    manager = CheckpointStorageManager({"folder": str(tmp_path)})
    id_ = save(manager)
    (tmp_path / id_ / "data-00000.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointUnusable, match=r"data-00000\.safetensors: has 0 bytes"):
        verify(tmp_path / id_, manager.manifests[id_])
