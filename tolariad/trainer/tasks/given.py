"""Make a task of the model and the loaders that a program passes to `Tolaria.train`.

Promises: the methods of the program's own task come first. Without a `loss`, integer targets are classes (cross
entropy, accuracy) and other targets are values (mean squared error). Anything else is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.tasks.names import OPTIONAL, functions_of

if TYPE_CHECKING:
    from types import CodeType

    from torch import Tensor, nn

    from tolariad.core.calc.settings.model import Settings


class GivenTask:
    """A task over the program's model and loaders, with its optimizer and its own task if it passes them.

    `steps_itself`: the program makes the steps, in a loop of its own.
    """

    steps_itself = False

    # The call that the program passes its model to, for messages; and how a frozen run is gone on with.
    CALL: ClassVar[str] = "train()"
    AGAIN: ClassVar[str] = "Call `train` again"

    def __init__(
        self,
        model: nn.Module,
        train_data: Any,
        val_data: Any,
        *,
        task: Any = None,
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None = None,
    ) -> None:
        if not (optimizer is None or isinstance(optimizer, torch.optim.Optimizer | Mapping)):
            # Anything else would be passed over without a word, and the configured optimizer would train.
            raise SetupRefused(
                f"the optimizer that you pass to {self.CALL} is a {type(optimizer).__name__}: pass a torch Optimizer, "
                "a dict of several by name, or None for that of the configuration"
            )
        self._model, self._train_data, self._val_data = model, train_data, val_data
        self._task, self._optimizer = task, optimizer

    def __getattr__(self, name: str) -> Any:
        """Return an optional method of the program's task.

        A method that it does not have does not exist here either.
        """
        given = self.__dict__.get("_optimizer")
        if name == "optimizer" and isinstance(given, torch.optim.Optimizer):
            return lambda _model, _cfg: given
        if name == "optimizers" and isinstance(given, Mapping):
            return lambda _model: given
        if name in OPTIONAL:
            return getattr(self.__dict__.get("_task"), name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @property
    def program(self) -> Any:
        """The program's own task, or None."""
        return self._task

    @property
    def workers(self) -> int:
        """The number of processes that load the data of the training."""
        return int(getattr(self._train_data, "num_workers", 0))

    def model(self, _cfg: Settings) -> nn.Module:
        """Return the program's model as it is."""
        return self._model

    def train_data(self, _cfg: Settings) -> Any:
        """Return the program's loader or data."""
        return self._train_data

    def val_data(self, _cfg: Settings) -> Any:
        """Return the program's loader or data for validation, or None."""
        return self._val_data

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        """Return the task's loss; without one, the loss for the kind of the targets."""
        if hasattr(self._task, "loss"):
            found: Tensor | dict[str, Tensor] = self._task.loss(model, batch)
            return found
        inputs, targets = _pair(batch)
        return _loss(model(inputs), targets, "mean")

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        """Return the task's results; without them, sums of the loss and, for classes, of the accuracy."""
        if hasattr(self._task, "evaluate"):
            return self._task.evaluate(model, batch)
        inputs, targets = _pair(batch)
        outputs = model(inputs)
        count = targets.numel()
        sums: dict[str, tuple[Any, int]] = {"loss": (_loss(outputs, targets, "sum"), count)}
        if not targets.is_floating_point():
            sums["accuracy"] = ((outputs.argmax(1) == targets).sum(), count)
        return sums


def model_of(task: Any) -> str:
    """Return the words for the module that the user gives as the model."""
    return f"the model that you pass to {task.CALL}" if isinstance(task, GivenTask) else "what model(cfg) returns"


def program_of(task: Any) -> Any:
    """Return the object with the user's code: of a GivenTask the program's own task, which may be None."""
    return task.program if isinstance(task, GivenTask) else task


def codes_of(task: Any) -> list[CodeType]:
    """Return the user's code that trains: the functions of the task, and the loop that a program has itself."""
    functions = functions_of(program_of(task)).values()
    return [*(function.__code__ for function in functions), *getattr(task, "loop_codes", ())]


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(one, torch.Tensor) for one in batch):
        return batch[0], batch[1]
    raise SetupRefused(
        f"a batch is a {type(batch).__name__}, not a pair of tensors (inputs, targets): give train() a task= with the "
        "methods loss(model, batch) and evaluate(model, batch)"
    )


def _loss(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    if targets.is_floating_point():
        return functional.mse_loss(outputs, targets.reshape(outputs.shape), reduction=reduction)
    return functional.cross_entropy(outputs, targets, reduction=reduction)
