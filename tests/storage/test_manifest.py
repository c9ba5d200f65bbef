"""The manifest is plain JSON that older and newer versions can read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from blake3 import blake3

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnusable, Manifest, read_manifest
from tolariad.storage.manifest import FORMAT, complete, decode_manifest, encode_manifest, merkle_root
from tolariad.storage.verify import verify

MANIFEST = complete(
    Manifest(
        checkpoint_id="ck",
        training_run_id="00ff",
        parent_checkpoint_id="",
        created_ns=1_767_323_045_000_006_000,
        reason="start",
        epoch=1,
        batch=0,
        global_step=2**40,
        model_hash="ab",
        chunks=(),
    ),
    (
        m.Piece(name="model-00000.safetensors", size=3, blake3="cd"),
        m.Piece(name="model-00000.001.safetensors", size=4, blake3="ef"),
        m.Piece(name="state-00000.msgpack", size=5, blake3="01"),
    ),
)
# The fields of Leyline's CheckpointMetadata, under its names; `schema` is called `format`.
LEYLINE = [
    "checkpoint_id",
    "format",
    "epoch",
    "global_step",
    "training_run_id",
    "created_ns",
    "model_hash",
    "merkle_root",
    "chunks",
    "code_version",
    "toolchain_version",
    "hardware_profile",
    "rng_captured",
    "pruning_phase",
    "cumulative_pruned_fraction",
    "importance_ref",
    "mask_ref",
    "parent_checkpoint_id",
    "health",
    "promoted_good",
    "rollback_capable",
    "sizes",
]


def test_the_manifest_is_json_with_the_format_and_integers():
    """Any JSON reader finds every field of CheckpointMetadata: integers, with RFC 3339 times beside them."""
    read = json.loads(encode_manifest(MANIFEST))
    assert set(LEYLINE) <= set(read)
    assert read["format"] == FORMAT == "tolaria_3.1_c020"
    assert read["global_step"] == 2**40
    whole = ("branch", "health", "pruning_phase", "created_ns", "epoch")
    assert {name: type(read[name]) for name in whole} == dict.fromkeys(whole, int)
    assert read["created"] == "2026-01-02T03:04:05.000006Z"
    assert read["chunks"][1] == {"name": "model-00000.001.safetensors", "offset": 3, "len": 4, "blake3": "ef"}
    assert read["sizes"] == {"model-00000.safetensors": 7, "state-00000.msgpack": 5}
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_fields_of_a_newer_version_are_passed_by():
    """An unknown field changes nothing."""
    read = json.loads(encode_manifest(MANIFEST)) | {"kept_warm": "x"}
    assert decode_manifest(json.dumps(read).encode()) == MANIFEST


@pytest.mark.parametrize("found", [{"format": "tolaria_9"}, {"format": "tolaria_9", "checkpoint_id": 3}])
def test_another_format_is_refused_by_name(found):
    """A folder of another format is refused before its fields are read."""
    read = json.loads(encode_manifest(MANIFEST)) | found
    with pytest.raises(ValueError, match="tolaria_9"):
        decode_manifest(json.dumps(read).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("training_run_id", "00fe"),
        ("model_hash", "ac"),
        ("config_hash", "1"),
        ("code_version", "9"),
        ("toolchain_version", "9"),
        ("hardware_profile", "9"),
        ("torch_threads", 9),
        ("chunks", []),
    ],
)
def test_the_root_covers_every_piece_and_the_context_it_was_made_in(field, value):
    """If one of them is changed, the manifest contradicts itself."""
    read = json.loads(encode_manifest(MANIFEST)) | {field: value}
    with pytest.raises(ValueError, match="Merkle root"):
        decode_manifest(json.dumps(read).encode())


def test_no_two_sets_of_pieces_have_one_root(seed):
    """A piece that is added, left out, renamed or exchanged changes the root; the given order does not."""
    draw = random.Random(seed)
    pieces = [m.Piece(name=f"p{n}", size=n, blake3=f"{n:02x}") for n in range(9)]
    roots = {merkle_root(pieces[:count], {}): count for count in range(10)}
    assert len(roots) == 10
    shuffled = draw.sample(pieces, len(pieces))
    assert merkle_root(shuffled, {"a": "b"}) == merkle_root(pieces, {"a": "b"})
    changed = [m.Piece(name="p1", size=0, blake3="00"), m.Piece(name="p0", size=1, blake3="01"), *pieces[2:]]
    assert merkle_root(changed, {}) != merkle_root(pieces, {})
    # A tree that repeats its odd leaf would have one root for these two; a context is no piece.
    assert merkle_root([*pieces[:3]], {}) != merkle_root([*pieces[:3], pieces[2]], {})
    assert merkle_root([], {"ab": "c"}) != merkle_root([], {"a": "bc"})


@pytest.mark.parametrize("name", ["../secret", "a/b", "", "manifest.json"])
def test_a_piece_never_lies_outside_its_folder(name):
    """Names of pieces are plain names, so a manifest cannot cause another file to be read or hashed."""
    read = json.loads(encode_manifest(MANIFEST))
    read["chunks"][0]["name"] = name
    with pytest.raises(ValueError, match="name of a piece"):
        decode_manifest(json.dumps(read).encode())


def _with(**changed):
    return json.dumps(json.loads(encode_manifest(MANIFEST)) | changed).encode()


def _chunk(number, **changed):
    chunks = json.loads(encode_manifest(MANIFEST))["chunks"]
    chunks[number] |= changed
    return _with(chunks=chunks)


_DEEP = b"[" * 100_000
BAD = {
    "a negative length": _chunk(0, len=-1),
    "a huge length": _chunk(0, len=2**64),
    "a length of thousands of digits": encode_manifest(MANIFEST).replace(b'"len": 3', b'"len": 3' + b"0" * 5000),
    "an offset of another place": _chunk(1, offset=4),
    "a negative offset": _chunk(0, offset=-3),
    "one name twice": _chunk(1, name="model-00000.safetensors"),
    "a name with a NUL": _chunk(0, name="a\0b"),
    "a hidden name": _chunk(0, name=".bashrc"),
    "the folder above": _chunk(0, name=".."),
    "an absolute name": _chunk(0, name="/etc/passwd"),
    "a name with an escape": _chunk(0, name="a\x1b[2J"),
    "a long name": _chunk(0, name="x" * 300),
    "a negative step": _with(global_step=-1),
    "a huge step": _with(global_step=2**63),
    "an epoch that no run reaches": _with(epoch=2**40),
    "a negative size": _with(sizes={"model-00000.safetensors": -7}),
    "a negative dimension": _with(cut={"model-00000.safetensors": {"w": [2, -3]}}),
    "a field of another type": _with(chunks={"a": 1}),
    "text that is no Unicode": encode_manifest(MANIFEST).replace(b'"ck"', b'"\xff"'),
    "values within each other": b'{"format": "tolaria_3.1_c020", "chunks": ' + _DEEP,
    "unknown values within each other": encode_manifest(MANIFEST)[:-3] + b', "later": ' + _DEEP + b"}",
    "one field twice": encode_manifest(MANIFEST).replace(b'"epoch": 1', b'"epoch": 1, "epoch": 1'),
    "no object": b"[]",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_a_manifest_that_no_run_writes_is_refused_as_any_damaged_one(name, tmp_path):
    """With one line that names what is wrong. Its hash is right: whoever wrote the journal wrote it too."""
    folder = tmp_path / "c000001"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(BAD[name])
    (tmp_path / "c000001" / "model-00000.safetensors").write_bytes(b"abc")
    with pytest.raises(CheckpointUnusable) as refused:
        verify(folder, blake3(BAD[name]).hexdigest())

    assert refused.value.file == "manifest.json"
    assert len(refused.value.why) < 400
    assert "\n" not in refused.value.why


@pytest.mark.parametrize("id_", ["..", ".", "a/b", "/etc", "", "a\0b", ".hidden"])
def test_a_checkpoint_never_lies_outside_the_folder_of_checkpoints(id_, tmp_path):
    """A journal may name anything as an id."""
    with pytest.raises(CheckpointUnusable):
        read_manifest(tmp_path / "checkpoints" / id_ if id_ != "/etc" else Path("/"), "00")
