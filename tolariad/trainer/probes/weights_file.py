"""Read weights that some other program wrote, for a run that begins with them (`tolariad run --init FILE`).

Promises: no code in the file is run: torch reads it by `weights_only`, and this process ends after it. What the run
gets is a file of its own, named by its hash.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from blake3 import blake3

from tolariad import run_files
from tolariad.storage.tensor_file import Tensor, content
from tolariad.trainer.checkpoints.tensors import check_tensor, entry_of, raw_bytes, read_tensors
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.probes.messages import TakenWeights
from tolariad.trainer.probes.profiling import NotWritten

if TYPE_CHECKING:
    from tolariad.trainer.probes.messages import TakeWeights

# Where scripts keep the model's state_dict beside other things.
_KEYS: Final = ("model", "state_dict", "model_state_dict", "weights", "net")
# What DistributedDataParallel and torch.compile put before each name.
_PREFIXES: Final = ("module.", "_orig_mod.")


def take_weights(trial: TakeWeights) -> TakenWeights:
    """Read the file and write its tensors. Raises SetupRefused if it holds no weights, NotWritten."""
    source, target = Path(trial.file), Path(trial.output)
    tensors = _without_prefix(_read(source))
    for name, tensor in tensors.items():
        try:
            check_tensor(tensor)
        except ValueError as error:
            raise SetupRefused(f"--init: {source}: {name}: {error}") from error
    try:
        return TakenWeights(hash=_write(target, tensors), tensors=len(tensors))
    except OSError as error:
        raise NotWritten(f"{target}: {error.strerror or error}") from error


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(read_tensors(memoryview(bytearray(path.read_bytes()))))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise SetupRefused(f"--init: {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a file that is no file of torch raises anything
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SetupRefused(
            f"--init: {path} is no file of weights: {first}. Give a .safetensors file, or what "
            "torch.save(model.state_dict(), FILE) wrote"
        ) from error
    return _state_dict(found, path)


def _state_dict(found: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the model's state_dict: what the file holds, or what it has under a usual name."""
    held = {key: found[key] for key in _KEYS if isinstance(found, Mapping) and isinstance(found.get(key), Mapping)}
    for one in (found, *held.values()):
        if isinstance(one, Mapping) and one and all(isinstance(value, torch.Tensor) for value in one.values()):
            return {str(name): value for name, value in one.items()}
    there = ", ".join(map(str, list(found)[:6])) if isinstance(found, Mapping) else type(found).__name__
    raise SetupRefused(
        f"--init: {path} holds no state_dict of a model, alone or as one of {', '.join(_KEYS)}; it has: {there}"
    )


def _without_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for prefix in (*_PREFIXES, *_PREFIXES):
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _write(target: Path, tensors: dict[str, torch.Tensor]) -> str:
    """Write the tensors to a temporary file, sync it, rename it. Return the BLAKE3 of the file."""
    held = [Tensor(entry_of(name, tensor), raw_bytes(tensor)) for name, tensor in tensors.items()]
    aside, hasher = target.with_name(f".{target.name}.partial"), blake3()
    aside.unlink(missing_ok=True)
    try:
        descriptor = run_files.open_file(target.parent, aside.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            for data in content(held, {"format": "pt"}):
                hasher.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return hasher.hexdigest()
