"""What a user brings: the Task protocol, and finding the task that a configuration names.

Promises: only what the configuration names is imported, and its source is hashed as it was found.
It must not know: how training works.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from blake3 import blake3

from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor, nn

    from tolariad.core.settings.model import Settings

BUILT_IN: Final = {
    "digits": ("tolariad.trainer.tasks.digits", "Digits"),
    "chars": ("tolariad.trainer.tasks.chars", "Chars"),
}
# What the journal calls the task of a program that called `Tolaria.train`.
GIVEN: Final = "given"
_REQUIRED: Final = ("model", "train_data", "val_data", "loss", "evaluate")


@runtime_checkable
class Task(Protocol):
    """What is trained. `cfg` is the resolved configuration; options of your own are in `cfg.task_options`.

    Optional, looked up by name: `optimizer(model, cfg)` -> Optimizer; `param_groups(model, cfg)` -> what a torch
    optimizer takes; `clip_gradients(model)` -> the norm before clipping (a number or a tensor with one), called between backward
    and update: what the detector judges; `loss_unit`, a number: if the loss may be negative, by how much it must rise for good
    before the run goes back (docs/detection.md); `on_step_end(model, step)` and `on_epoch_end(model, epoch, metrics)` after an update and a validation;
    `state_dict()` and `load_state_dict(state)` for state of the task's own.
    """

    def model(self, cfg: Settings) -> nn.Module:
        """A new model, on the CPU. Process-wide generators are seeded."""
        ...

    def train_data(self, cfg: Settings) -> Any:
        """A Dataset, a tuple of tensors of equal length, or a loader."""
        ...

    def val_data(self, cfg: Settings) -> Any:
        """The same for validation, or None."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        """The loss to minimise, a 0-dim tensor (or a dict with one under `loss`). The batch is on the device."""
        ...

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Sums and counts over a batch, such as `{"accuracy": (correct, samples)}`. In eval mode, without gradients."""
        ...


class FoundTask(NamedTuple):
    """A task and the BLAKE3 of the file it comes from."""

    task: Any
    source_hash: str


def find_task(name: str) -> FoundTask:
    """The task behind `digits`, `chars`, `package.module:Name` or `./file.py:Name`. Raises SetupRefused."""
    if name in BUILT_IN:
        module_name, attribute = BUILT_IN[name]
        return _made(importlib.import_module(module_name), attribute, name)
    if name == GIVEN:
        raise SetupRefused("task: this run is of a program that called Tolaria.train; start that program again")
    place, separator, attribute = name.rpartition(":")
    if not separator or not attribute:
        known = ", ".join(BUILT_IN)
        raise SetupRefused(f"task: {name!r} is none of {known}, package.module:Name, ./file.py:Name")
    module = _from_file(Path(place), name) if place.endswith(".py") else _from_package(place, name)
    return _made(module, attribute, name)


def _from_file(path: Path, name: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise SetupRefused(f"task: there is no file {path} (from {name!r}; relative paths count from {Path.cwd()})")
    # A package name of its own, so that it cannot hide an installed module; its folder, so that it can import siblings.
    spec = importlib.util.spec_from_file_location(f"tolaria_task_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SetupRefused(f"task: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # DataLoader workers that are spawned, and dataclasses, look it up there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _from_package(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise SetupRefused(f"task: {name!r} cannot be imported: {error}; is it installed, or on PYTHONPATH?") from error


def _made(module: ModuleType, attribute: str, name: str) -> FoundTask:
    """Call the class or factory; an instance is taken as it is."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise SetupRefused(f"task: {module.__name__} has no {attribute!r} (from {name!r})")
    task = found() if inspect.isclass(found) or inspect.isfunction(found) else found
    missing = [method for method in _REQUIRED if not callable(getattr(task, method, None))]
    if missing:
        raise SetupRefused(
            f"task: {name!r} has no method {', '.join(missing)}; `tolariad new-task PATH` writes one that works"
        )
    return FoundTask(task, _hash_of(module))


def _hash_of(module: ModuleType) -> str:
    path = Path(module.__file__ or "")
    return blake3(path.read_bytes()).hexdigest() if path.is_file() else ""
