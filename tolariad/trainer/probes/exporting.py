"""Write a checkpoint for a script that knows nothing of this package: `torch.load(FILE, weights_only=True)` reads it.

Promises: every byte of the checkpoint is verified first. A file appears whole or not at all, and is read back by
`weights_only` before it does. The optimizer's state is what `Optimizer.load_state_dict` takes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tolariad.storage.export import Exported, NoAverage, Weights, export_weights
from tolariad.trainer.checkpoints.restore import load
from tolariad.trainer.checkpoints.tensors import read_tensors
from tolariad.trainer.checkpoints.tree import made
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.probes.messages import ExportedState
from tolariad.trainer.probes.profiling import NotWritten

if TYPE_CHECKING:
    from tolariad.trainer.probes.messages import ExportState

_HOST: Final = torch.device("cpu")
_NAMES: Final = ("model", "optimizer")


def export_state(trial: ExportState) -> ExportedState:
    """Write the files. Raises CheckpointUnusable, SetupRefused, NotWritten."""
    weights, target = trial.weights, Path(trial.output)
    if weights is None:
        raise SetupRefused("an export needs a checkpoint")
    model, done = _model(trial, Path(weights.folder), weights.manifest)
    optimizers: dict[str, Any] = {}
    if trial.with_optimizer:
        trees = load(Path(weights.folder), weights.manifest).optimizers
        optimizers = {name: _state_dict(tree) for name, tree in trees.items()}
    whole = _files(target, model, optimizers) if trial.is_folder else {target: _together(model, optimizers, done)}
    try:
        size = sum(_write(path, held) for path, held in whole.items())
    except OSError as error:
        raise NotWritten(f"{error.filename or target}: {error.strerror or error}") from error
    what = {path: "model" if held is model else "optimizer" for path, held in whole.items()}
    if not trial.is_folder and optimizers:
        what = {target: " and ".join(_NAMES)}
    return ExportedState(
        files={str(path): held for path, held in what.items()},
        tensors=done.tensors,
        size=size,
        optimizers=tuple(optimizers),
        seeds=done.seeds,
        compactions=done.compactions,
    )


def _model(trial: ExportState, folder: Path, manifest: str) -> tuple[dict[str, torch.Tensor], Exported]:
    """Return the model's state_dict, as an export to safetensors has it."""
    chosen = Weights.AVERAGED if trial.averaged else Weights.TRAINED
    place = Path(trial.output).absolute()
    try:
        if trial.is_folder:
            place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place if trial.is_folder else place.parent) as aside:
            file = Path(aside) / "model.safetensors"
            done = export_weights(folder, manifest, chosen, file, promoted=trial.promoted)
            held = bytearray(file.read_bytes())
    except NoAverage as error:
        raise SetupRefused(f"--ema: {error}; leave --ema out to export the weights") from error
    except OSError as error:
        raise NotWritten(f"{error.filename or place}: {error.strerror or error}") from error
    # A bytearray: torch warns of tensors over memory that cannot be written.
    return dict(read_tensors(memoryview(held))), done


def _state_dict(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's state as its `state_dict()` gave it, with plain numbers in place of NumPy's."""
    found = {**tree.get("more", {}), "state": tree["state"], "param_groups": tree["param_groups"]}
    plain: dict[str, Any] = _plain(made(found, _HOST))
    return plain


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray() | np.generic():
            return value.tolist()
        case dict():
            return type(value)((key, _plain(item)) for key, item in value.items())
        case list() | tuple():
            return type(value)(map(_plain, value))
        case _:
            return value


def _together(model: dict[str, torch.Tensor], optimizers: dict[str, Any], done: Exported) -> dict[str, Any]:
    """Return the content of one file: the model's state_dict alone, or beside the optimizers', with the place."""
    if not optimizers:
        return model
    manifest = done.manifest
    place = {"step": manifest.global_step, "epoch": manifest.epoch, "batch": manifest.batch}
    alone = len(optimizers) == 1
    held = {"optimizer": next(iter(optimizers.values()))} if alone else {"optimizers": optimizers}
    return {"model": model, **held, **place}


def _files(folder: Path, model: dict[str, torch.Tensor], optimizers: dict[str, Any]) -> dict[Path, dict[str, Any]]:
    """Return the files of a folder: one for each state_dict."""
    alone = len(optimizers) == 1
    named = {"optimizer" if alone else f"optimizer-{name}": held for name, held in optimizers.items()}
    return {folder / f"{name}.pt": held for name, held in {"model": model, **named}.items()}


def _write(path: Path, content: dict[str, Any]) -> int:
    """Write to a temporary file, read it back as a user will, sync it, rename it. Return its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.partial")
    try:
        torch.save(content, aside)
        try:
            torch.load(aside, weights_only=True, map_location="cpu")
        except Exception as error:
            why = f"{path.name} holds more than tensors, numbers and text; weights_only=True would not read it: {error}"
            raise SetupRefused(why) from error
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        size = aside.stat().st_size
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return size
