"""`tolaria export-weights` writes verified weights for any reader of safetensors."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.cli.stored import record
from tolariad.trainer.probes.messages import ExportedState


@pytest.fixture
def run(run_dir):
    return record(run_dir, averages=True)


def test_the_newest_checkpoints_weights_are_written(tolaria, run, tmp_path):
    """A tied tensor has both names; buffers that state_dict leaves out are missing; the header names the source."""
    file = tmp_path / "model.safetensors"
    said = tolaria("export-weights", run, "-o", file)

    assert (said.code, said.err) == (0, "")
    assert "checkpoint c000002, step 10: 2 tensors" in said.out
    tensors = load_file(file)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == dict.fromkeys(
        ("weight", "tied"), np.full((2, 3), 10.0).tolist()
    )
    with safe_open(file, "numpy") as opened:
        labels = opened.metadata()
    assert labels == {"format": "pt", "run": "00ff", "checkpoint": "c000002", "step": "10", "weights": "trained"}


def test_weights_that_are_known_to_be_good_say_so(tolaria, run_dir, tmp_path):
    """The journal has promoted the checkpoint after 32 healthy steps; its manifest was written before them."""
    file = tmp_path / "model.safetensors"
    record(run_dir, steps=45)
    assert tolaria("export-weights", run_dir, "--id", "c000002", "-o", file).code == 0

    with safe_open(file, "numpy") as opened:
        assert opened.metadata()["promoted_good"] == "true"


def test_a_named_checkpoint_and_its_average(tolaria, run, tmp_path):
    """--id selects a checkpoint; --ema replaces each parameter by its moving average, under each of its names."""
    file = tmp_path / "model.safetensors"
    assert tolaria("export-weights", run, "--id", "c000001", "-o", file).code == 0
    assert load_file(file)["weight"].max() == 0.0

    said = tolaria("export-weights", run, "--ema", "-o", file, "--json").json

    assert {name: tensor.max() for name, tensor in load_file(file).items()} == {"weight": 5.0, "tied": 5.0}
    assert (said["id"], said["weights"], said["tensors"], said["size"]) == (
        "c000002",
        "averaged",
        2,
        file.stat().st_size,
    )


def test_what_is_not_there_is_exit_1_and_writes_nothing(tolaria, run, run_dir, tmp_path):
    """If there is no such checkpoint, the error lists the existing ones."""
    said = tolaria("export-weights", run, "--id", "c9", "-o", tmp_path / "m")

    assert said.code == 1
    assert "'c9'" in said.err
    assert "c000001, c000002" in said.err
    assert not (tmp_path / "m").exists()


def test_a_run_without_an_average_says_so(tolaria, run_dir, tmp_path):
    """The error names the key that enables the average."""
    said = tolaria("export-weights", record(run_dir), "--ema", "-o", tmp_path / "m")

    assert said.code == 1
    assert "no moving average" in said.err
    assert "ema.decay" in said.err


@pytest.mark.parametrize("name", ["manifest.json", "model-00000.safetensors"])
def test_a_changed_byte_is_never_exported(tolaria, run, tmp_path, name):
    """Damage of manifest or weights: exit 1 with the file's name; an existing target file is kept."""
    damaged, file = run / "checkpoints" / "c000002" / name, tmp_path / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 1
    damaged.write_bytes(content)
    file.write_bytes(b"before")
    said = tolaria("export-weights", run, "-o", file)

    assert said.code == 1
    assert f"checkpoint c000002 does not verify: {name}: its BLAKE3 is" in said.err
    assert [path.name for path in tmp_path.iterdir() if "model" in path.name] == ["model.safetensors"]
    assert file.read_bytes() == b"before"


def test_files_for_torch_are_written_by_a_process_that_has_it(tolaria, run, tmp_path, answer):
    """A .pt file, a folder, and the optimizer's state only for these."""
    found = ExportedState(files={"x.pt": "model and optimizer"}, tensors=2, size=9)
    asked = answer(found)
    said = tolaria("export-weights", run, "--with-optimizer", "--checkpoint", "c000001", "-o", "x.pt")
    assert (said.code, said.out) == (
        0,
        "x.pt: trained weights and optimizer of checkpoint c000001, step 0: 2 tensors, 9 B\n",
    )
    assert tolaria("export-weights", run, "-o", f"{tmp_path}/folder/", "--json").json["files"] == found.files
    assert [(one.weights.id, one.with_optimizer, one.is_folder) for one in asked] == [
        ("c000001", True, False),
        ("c000002", False, True),
    ]
    refused = tolaria("export-weights", run, "--with-optimizer", "-o", "x.safetensors")
    assert (refused.code, "needs a .pt file or a folder" in refused.err) == (2, True)
