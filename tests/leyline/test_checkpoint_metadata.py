"""A checkpoint's manifest is Leyline's CheckpointMetadata as JSON."""

from __future__ import annotations

import json

from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec.structs import replace

from tests.storage.test_manifest import MANIFEST
from tolariad.leyline import CheckpointChunk, CheckpointMetadata
from tolariad.storage.manifest import Chunk, Manifest, complete, decode_manifest, encode_manifest

# A value in every field.
FULL = complete(
    replace(
        MANIFEST,
        parent_checkpoint_id="c0",
        branch=2,
        acted=(3, 2**40),
        health=2,
        promoted_good=True,
        promoted_checkpoint_id="c0",
        pruning_phase=1,
        cumulative_pruned_fraction=0.125,
        mask_ref="masks",
        compactions=2,
        importance_ref="importance",
        task_hash="01",
        config_hash="02",
        code_version="3",
        toolchain_version="4",
        hardware_profile="5",
        torch_threads=6,
        aliases={"head.weight": "embed.weight"},
        cut={"model-00000.safetensors": {"embed.weight": (2**31, 4), "scale": ()}},
        transient=("mask",),
    ),
    MANIFEST.pieces,
)


def test_the_message_has_the_manifests_fields():
    """By the same names, of the checkpoint and of each file."""
    assert set(CheckpointMetadata.DESCRIPTOR.fields_by_name) == set(Manifest.__struct_fields__)
    assert set(CheckpointChunk.DESCRIPTOR.fields_by_name) == set(Chunk.__struct_fields__)


def test_a_manifest_is_read_as_the_message_and_written_again():
    """Without loss: what comes back is the same manifest, whose root is checked as it is decoded."""
    for manifest in (MANIFEST, FULL):
        given = json.loads(encode_manifest(manifest))
        message = CheckpointMetadata.FromString(ParseDict(given, CheckpointMetadata()).SerializeToString())
        back = MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            use_integers_for_enums=True,
        )
        assert decode_manifest(json.dumps(with_numbers(back)).encode()) == manifest


def with_numbers(read):
    """Return the JSON with integers of 64 bits as numbers: protobuf writes them as texts."""
    whole = ("batch", "global_step", "created_ns")
    sizes = {name: int(size) for name, size in read["sizes"].items()}
    chunks = [chunk | {"offset": int(chunk["offset"]), "len": int(chunk["len"])} for chunk in read["chunks"]]
    cut = {
        group: {name: [int(one) for one in shape] for name, shape in shapes.items()}
        for group, shapes in read["cut"].items()
    }
    changed = {"acted": [int(one) for one in read["acted"]], "sizes": sizes, "chunks": chunks, "cut": cut}
    return read | {name: int(read[name]) for name in whole} | changed
