"""The names of a task's methods, and methods whose names are almost those.

Promises: only methods that the task's own module defines are looked at. A name that is none of a task's, and near none,
is the user's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from tolariad.core.calc.text.nearest import nearest

VALIDATION: Final = ("val_data", "evaluate")
REQUIRED: Final = ("model", "train_data", "loss", *VALIDATION)
OPTIONAL: Final = (
    "optimizer",
    "optimizers",
    "training_step",
    "grow",
    "param_groups",
    "test_data",
    "clip_gradients",
    "describe",
    "loss_unit",
    "stages",
    "participants",
    "seed_slots",
    "seed_losses",
    "on_step_end",
    "on_epoch_end",
    "on_validation_end",
    "state_dict",
    "load_state_dict",
)
# What other trainers, and scripts, call the same thing.
_ELSEWHERE: Final = {
    "build_model": "model",
    "configure_model": "model",
    "get_model": "model",
    "train_dataloader": "train_data",
    "train_dataset": "train_data",
    "train_loader": "train_data",
    "training_data": "train_data",
    "val_dataloader": "val_data",
    "val_dataset": "val_data",
    "val_loader": "val_data",
    "validation_data": "val_data",
    "test_dataloader": "test_data",
    "test_dataset": "test_data",
    "test_loader": "test_data",
    "compute_loss": "loss",
    "compute_metrics": "evaluate",
    "validate": "evaluate",
    "validation_step": "evaluate",
    "configure_optimizers": "optimizer",
    "on_batch_end": "on_step_end",
    "on_train_batch_end": "on_step_end",
    "on_train_epoch_end": "on_epoch_end",
    "on_validation_epoch_end": "on_validation_end",
}
_SIMILARITY: Final = 0.8
# The arguments of methods that are first called long after the start, where a wrong signature would cost the most.
_LATE: Final = {
    "test_data": ("cfg",),
    "grow": ("model", "change"),
    "on_step_end": ("model", "step"),
    "on_epoch_end": ("model", "epoch", "metrics"),
    "on_validation_end": ("model",),
    "clip_gradients": ("model",),
    "seed_losses": ("model", "batch"),
    "describe": ("item",),
    "state_dict": (),
    "load_state_dict": ("state",),
}
# Hooks that may have a parameter `context` as well.
WITH_CONTEXT: Final = ("on_step_end", "on_epoch_end")


def functions_of(task: Any) -> dict[str, FunctionType]:
    """Return the functions that the task's own module defines for it, by name."""
    if isinstance(task, ModuleType):
        return {name: one for name, one in vars(task).items() if _is_of(one, task.__name__)}
    if task is None:
        return {}
    kinds = [kind for kind in type(task).__mro__ if kind.__module__ == type(task).__module__]
    members = {name: one for kind in reversed(kinds) for name, one in vars(kind).items()}
    plain = {name: getattr(one, "__func__", one) for name, one in (members | getattr(task, "__dict__", {})).items()}
    return {name: one for name, one in plain.items() if isinstance(one, FunctionType)}


def _is_of(found: Any, module: str) -> bool:
    return inspect.isfunction(found) and found.__module__ == module


def uncallable(task: Any) -> Iterator[tuple[str, str]]:
    """Yield each method whose signature does not take the arguments that it will be called with: `f(a)`, `f(a, b)`."""
    for name, arguments in _LATE.items():
        method = getattr(task, name, None)
        if not callable(method):
            continue
        try:
            signature = inspect.signature(method)
        except ValueError:
            continue  # one of C: it does not tell
        more = {"context": None} if name in WITH_CONTEXT and "context" in signature.parameters else {}
        try:
            signature.bind(*arguments, **more)
        except TypeError:
            yield f"{name}{signature}", f"{name}({', '.join(arguments)})"


def takes_context(method: Any) -> bool:
    """Return whether a hook has a parameter `context`."""
    try:
        return "context" in inspect.signature(method).parameters
    except ValueError:
        return False


def misnamed(task: Any) -> Iterator[tuple[str, str]]:
    """Yield each public method that is never called, and the name that was probably meant, which the task lacks."""
    known = (*REQUIRED, *OPTIONAL)
    for name in functions_of(task):
        if name.startswith("_") or name in known:
            continue
        meant = _meant(name)
        if meant is not None and not hasattr(task, meant):
            yield name, meant


def _meant(name: str) -> str | None:
    """Return the known name that this one was probably meant to be."""
    # `stages` is no method: one whose name is like it is the user's own.
    methods = [one for one in (*REQUIRED, *OPTIONAL) if one != "stages"]
    return _ELSEWHERE.get(name) or nearest(name, methods, _SIMILARITY)
