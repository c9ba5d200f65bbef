"""The manifest is plain JSON that older and newer versions can read."""

from __future__ import annotations

import json

import pytest

from tolariad.core.vocabulary.checkpoints import Piece
from tolariad.storage import FORMAT, Manifest, decode_manifest, encode_manifest

MANIFEST = Manifest(
    checkpoint_id="ck",
    training_run_id="00ff",
    parent_checkpoint_id="",
    created="2026-01-02T03:04:05.000006Z",
    reason="start",
    epoch=1,
    batch=0,
    global_step=2**40,
    applied_cause=7,
    model_hash="ab",
    pieces=(Piece(name="model-00000.safetensors", size=3, blake3="cd"),),
    aliases={},
)


def test_the_manifest_is_json_with_the_format_and_integers():
    """Any JSON reader finds the format's name, and integers as integers."""
    read = json.loads(encode_manifest(MANIFEST))
    assert read["format"] == FORMAT == "tolaria_3.1_c020"
    assert read["global_step"] == 2**40
    assert read["pieces"] == [{"name": "model-00000.safetensors", "size": 3, "blake3": "cd"}]
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_fields_of_a_newer_version_are_passed_by():
    """A field this version does not know changes nothing."""
    read = json.loads(encode_manifest(MANIFEST)) | {"importance_ref": "x"}
    assert decode_manifest(json.dumps(read).encode()) == MANIFEST


def test_another_format_is_refused_by_name():
    """A folder of another format is never guessed at."""
    read = json.loads(encode_manifest(MANIFEST)) | {"format": "tolaria_9"}
    with pytest.raises(ValueError, match="tolaria_9"):
        decode_manifest(json.dumps(read).encode())


@pytest.mark.parametrize("name", ["../secret", "a/b", "", "manifest.json"])
def test_a_piece_never_lies_outside_its_folder(name):
    """The names of pieces are plain names: a manifest cannot make anyone read or hash another file."""
    read = json.loads(encode_manifest(MANIFEST))
    read["pieces"][0]["name"] = name
    with pytest.raises(ValueError, match="name of a piece"):
        decode_manifest(json.dumps(read).encode())
