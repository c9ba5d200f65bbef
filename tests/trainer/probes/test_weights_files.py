"""Weights and optimizer leave a run as torch's own files, and weights of any program begin a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.start import begin_with
from tolariad.trainer.probes.answering import tried
from tolariad.trainer.probes.messages import ExportState, TakeWeights

TASK = f"{Path(__file__).parents[1] / 'tasks'}/augmenting.py:Augmenting"


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_and_a_folder_have_what_a_script_loads(trained, tmp_path):
    """`weights_only=True` reads them, and the script's own load_state_dict takes both; one more step has its bits."""
    run = trained()
    file, folder = tmp_path / "both.pt", tmp_path / "export"
    found, code = run.ask(ExportState, output=str(file), with_optimizer=True)
    assert (code, found.files, found.optimizers) == (0, {str(file): "model and optimizer"}, ("",))
    assert run.ask(ExportState, output=str(folder), is_folder=True, with_optimizer=True)[1] == 0

    both = torch.load(file, weights_only=True)
    model, optimizer = (torch.load(folder / f"{name}.pt", weights_only=True) for name in ("model", "optimizer"))
    assert both["step"] == run.daemon.committed[-1].step
    assert equal(both["model"], model)
    assert equal(model, run.setup.model.state_dict())
    script = torch.optim.AdamW(run.setup.model.parameters())
    script.load_state_dict(optimizer)
    trained_state, loaded_state = run.setup.optimizer.state_dict()["state"], script.state_dict()["state"]
    assert all(equal(loaded_state[index], held) for index, held in trained_state.items())
    assert script.param_groups[0]["betas"] == run.setup.optimizer.param_groups[0]["betas"]


def test_the_weights_alone_are_the_state_dict(trained, tmp_path):
    """Without the optimizer there is nothing around it; an average that is not there is refused."""
    run = trained()
    assert run.ask(ExportState, output=str(tmp_path / "model.pt"))[1] == 0
    assert equal(torch.load(tmp_path / "model.pt", weights_only=True), run.setup.model.state_dict())
    refused, code = run.ask(ExportState, output=str(tmp_path / "average.pt"), averaged=True)
    assert (code, "leave --ema out" in refused.error) == (78, True)
    missing, code = run.ask(ExportState, output=str(tmp_path / "no" / "model.pt"))
    assert (code, "No such file" in missing.error) == (74, True)


WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.count": torch.tensor(3)}


def saved(path, content):
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("w.safetensors", WEIGHTS),
        ("w.pt", WEIGHTS),
        ("w.pt", {"model": WEIGHTS, "optimizer": {}, "epoch": 3}),
        ("w.pth", {"model_state_dict": {f"module.{key}": value for key, value in WEIGHTS.items()}}),
        ("w.bin", {f"_orig_mod.module.{key}": value for key, value in WEIGHTS.items()}),
    ],
    ids=["safetensors", "state_dict", "checkpoint", "parallel", "compiled"],
)
def test_weights_are_read_in_each_form_that_scripts_write(tmp_path, name, content):
    """The copy has the model's own names, and the hash is that of the whole file."""
    target = tmp_path / "run" / "init.safetensors"
    target.parent.mkdir()
    found, code = tried(TakeWeights(config="", file=str(saved(tmp_path / name, content)), output=str(target)))

    assert (code, found.tensors) == (0, 2)
    assert equal(load_file(target), WEIGHTS)
    assert found.hash == blake3(target.read_bytes()).hexdigest()


@pytest.mark.parametrize("content", [b"no weights", b"", None, {"epoch": 3}, [1, 2], {"model": {"a": print}}])
def test_a_file_without_weights_is_refused_and_runs_nothing(tmp_path, content):
    """Text, nothing, no file, other objects, and a pickle that names a function."""
    file = tmp_path / "w.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    refused, code = tried(TakeWeights(config="", file=str(file), output=str(tmp_path / "init.safetensors")))

    assert (code, refused.traceback) == (78, "")
    assert f"--init: {file}" in refused.error
    assert not (tmp_path / "init.safetensors").exists()


def begun(setup, folder, weights):
    """Begin with these weights, as a trainer does."""
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / m.INIT_NAME)
    digest = blake3((folder / m.INIT_NAME).read_bytes()).hexdigest()
    parent = m.Parent(run_id="", checkpoint="", folder="", file="w.pt", manifest=digest)
    begin_with(setup, parent, folder, lambda: None)
    return parent


def test_a_run_begins_with_the_weights_or_names_what_does_not_fit(configured, tmp_path):
    """Each value is copied, also one of another precision. Names and shapes are compared before any change."""
    setup = build(configured(TASK, epochs=1, batch_size=8))
    given = {name: torch.full_like(value, 3) for name, value in setup.model.state_dict().items()}
    parent = begun(setup, tmp_path, given)
    assert equal(setup.model.state_dict(), given)
    half = {name: value.half() if value.is_floating_point() else value for name, value in given.items()}
    begun(setup, tmp_path, half)
    assert equal(setup.model.state_dict(), given)

    first = next(iter(given))
    for wrong, words in (
        ({name: value for name, value in given.items() if name != first}, f"it has no {first}"),
        ({**given, "more": torch.ones(2)}, "the model has no more"),
        ({**given, first: torch.ones(77)}, f"{first}: it holds (77,)"),
    ):
        with pytest.raises(CheckpointUnfit) as unfit:
            begun(setup, tmp_path, wrong)
        assert words in str(unfit.value)
        assert equal(setup.model.state_dict(), given)
    with pytest.raises(CheckpointUnusable, match="has changed since the run began"):
        begin_with(setup, parent, tmp_path, lambda: None)
