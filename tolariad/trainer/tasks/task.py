"""The Task protocol, and how the task that a configuration names is found.

Promises: only the module that the configuration names is imported, and its source file is hashed.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from blake3 import blake3

from tolariad.core.calc.settings.task_defaults import GIVEN, LIGHTNING
from tolariad.imported import attribute_of, module_at, place_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lightning.hooks import lightning_base
from tolariad.trainer.tasks.names import REQUIRED, VALIDATION, misnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from torch import Tensor, nn

    from tolariad.core.calc.learning_rate.schedule import GroupConfig
    from tolariad.core.calc.settings.model import Settings
    from tolariad.trainer.lr.configured import Horizon

BUILT_IN: Final = {
    "digits": ("tolariad.trainer.tasks.digits", "Digits"),
    "chars": ("tolariad.trainer.tasks.chars", "Chars"),
}
# The setting that names a task; error messages begin with it.
_KIND: Final = "task"


@runtime_checkable
class Task(Protocol):
    """Model, data, loss and metrics of a training.

    `cfg` is the resolved configuration; your options are in `cfg.task_options`.

    Optional members:

    * `optimizer(model, cfg)` returns the optimizer; `optimizers(model)` returns several by name, each for a part.
    * `training_step(model, batch, run)` takes the place of `loss`: it makes the updates of a step itself, by any number
      of `run.update(name, loss)`, and returns numbers by name. A `loss` among them is that of the step (docs/task.md).
    * `grow(model, change)` makes a change of the model's shape that a hook asked for (docs/task.md).
    * `param_groups(model, cfg)` returns the parameter groups for a torch optimizer.
    * `test_data(cfg)` returns the data of `tolariad test`, as `val_data` does.
    * `describe(item)` returns a text for one item of the training data, for `tolaria why RUN spike --show`.
    * `clip_gradients(model)` is called between backward pass and update. It returns the norm before clipping, a number
      or a tensor with one element, which the detector judges.
    * `loss_unit`, a number, for a loss that may be negative: the lasting rise that justifies a rollback
      (docs/detection.md).
    * `participants(model)` returns the participants of a rollback by name, in the order in which they are asked
      (docs/rollback.md#participants).
    * `on_validation_end(model)` is called after the last batch of a validation; it may return results of all of it.
    * `on_step_end(model, step)` is called after an update, `on_epoch_end(model, epoch, metrics)` after a validation. If
      they have a parameter `context`, they get a HookContext: losses, metrics, rates, and `log(name, value)`.
    * `state_dict()` and `load_state_dict(state)` save and restore the task's own state.
    """

    def model(self, cfg: Settings) -> nn.Module:
        """Return a new model on the CPU. The process-wide generators are seeded before."""
        ...

    def train_data(self, cfg: Settings) -> Any:
        """Return a Dataset, a tuple of tensors or NumPy arrays of equal length, or a loader."""
        ...

    def val_data(self, cfg: Settings) -> Any:
        """Return the same for validation, or None. A task may lack this and `evaluate`: then there is no validation."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        """Return the loss to minimise: a 0-dim tensor, or a dict with one under `loss`. The batch is on the device."""
        ...

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        """Return sums and counts over a batch, such as `{"accuracy": (correct, samples)}`, or means.

        A number or a tensor with one element is the mean over the batch; its name is `loss`. A dict holds means or
        pairs (sum, count) by name. In eval mode, without gradients.
        """
        ...


class FoundTask(NamedTuple):
    """A task, and the BLAKE3 of its source file.

    `schedules`: gives the schedules of the task's optimizer, for tasks whose rates are not those of the configuration.
    """

    task: Any
    source_hash: str
    schedules: Callable[[Horizon], Sequence[GroupConfig]] | None = None


def find_task(name: str) -> FoundTask:
    """Return the task named `digits`, `chars`, `package.module:Name` or `./file.py:Name`, or a module of Lightning.

    Raises SetupRefused.
    """
    if name in BUILT_IN:
        module_name, attribute = BUILT_IN[name]
        return _made(importlib.import_module(module_name), attribute, name)
    if name == GIVEN:
        raise SetupRefused("task: a program started this run with Tolaria.train; start that program again")
    if name.startswith(LIGHTNING):
        return _of_lightning(name.removeprefix(LIGHTNING))
    place, attribute = place_of(name, _KIND, BUILT_IN, SetupRefused)
    return _made(module_at(place, name, _KIND, SetupRefused), attribute, name)


def _of_lightning(name: str) -> FoundTask:
    """Return the task of the LightningModule `file.py:Module`. Its data module may be beside it, or in another file."""
    from tolariad.trainer.lightning.making import Parts
    from tolariad.trainer.lightning.task import LightningTask

    place, attribute = place_of(name, _KIND, BUILT_IN, SetupRefused)
    try:
        module = module_at(place, name, _KIND, SetupRefused)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"lightning", "pytorch_lightning"}:
            raise
        raise SetupRefused(
            f"task: {name!r} needs {error.name}, which is not installed: pip install 'tolariad[lightning]'"
        ) from error

    def datamodule(named: str) -> Any:
        if ":" not in named:
            return attribute_of(module, named, name, SetupRefused)
        beside, inside = place_of(named, _KIND, BUILT_IN, SetupRefused)
        path = Path(place).parent / beside if beside.endswith(".py") and place.endswith(".py") else beside
        return attribute_of(module_at(str(path), named, _KIND, SetupRefused), inside, named, SetupRefused)

    source_hash = _hash_of(module)
    task = LightningTask(Parts(attribute_of(module, attribute, name, SetupRefused), datamodule), source_hash)
    return FoundTask(task, source_hash, task.schedules)


def _made(module: ModuleType, attribute: str, name: str) -> FoundTask:
    """Call the class or factory. An instance is used as it is."""
    found = attribute_of(module, attribute, name, SetupRefused)
    if lightning_base(found if inspect.isclass(found) else type(found)) is not None:
        raise SetupRefused(f"task: {name!r} is a LightningModule; write lightning:{name}")
    task = found() if inspect.isclass(found) or inspect.isfunction(found) else found
    missing = [method for method in REQUIRED if not callable(getattr(task, method, None))]
    if "loss" in missing and callable(getattr(task, "training_step", None)):
        missing.remove("loss")
    meant_by = [(other, meant) for other, meant in misnamed(task) if meant in missing]
    # Without both there is no validation, unless one of them has another name.
    if set(VALIDATION) <= set(missing) and not any(meant in VALIDATION for _, meant in meant_by):
        missing = [method for method in missing if method not in VALIDATION]
    if missing:
        near = ", ".join(f"rename {other} to {meant}" for other, meant in meant_by)
        raise SetupRefused(
            f"task: {name!r} has no method {', '.join(missing)}; "
            f"{near or '`tolariad new-task PATH` writes a working example'}"
        )
    return FoundTask(task, _hash_of(module))


def _hash_of(module: ModuleType) -> str:
    path = Path(module.__file__ or "")
    return blake3(path.read_bytes()).hexdigest() if path.is_file() else ""
