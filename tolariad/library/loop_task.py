"""The task and the settings of a run with a loop of the user's own: its model, its data, its optimizers, kept objects.

Promises: what is kept is a part of every checkpoint, under its name. A checkpoint whose kept objects are not those of
the program is refused by name.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from msgspec.structs import replace

from tolariad.core.calc.settings.optimization import LearningRate
from tolariad.core.calc.settings.rules import with_implied_warmup
from tolariad.trainer.data.generators import is_generator, restore, state_of
from tolariad.trainer.data.randomness import rng_states, set_rng_states
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.tasks.given import GivenTask

if TYPE_CHECKING:
    from types import CodeType

    from torch import nn

    from tolariad.core.calc.settings.model import Settings

_log: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class LoopMisused(RuntimeError):
    """A call of the loop is missing, or comes at the wrong place. The text says which, and what to do."""


class _Items:
    """A dict of the user's own that is kept: its items are its state."""

    def __init__(self, items: dict[Any, Any], model: nn.Module) -> None:
        self._items, self._model = items, model

    def state_dict(self) -> dict[Any, Any]:
        return {key: _as_data(one) for key, one in self._items.items()}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        tensors = (*self._model.parameters(), *self._model.buffers())
        _refill(self._items, state, {one.untyped_storage().data_ptr() for one in tensors})


def _as_data(value: Any) -> Any:
    """Return the value with the state of each generator in it, instead of the generator."""
    if type(value) is dict:
        return {key: _as_data(one) for key, one in value.items()}
    return state_of(value) if is_generator(value) else value


def _refill(old: Any, saved: Any, of_model: Collection[int]) -> Any:
    """Return `saved`; if `old` is of the same kind and can be filled, `old` with the content of `saved`.

    Lists, dicts, tensors and arrays stay the same objects: a program uses them by other names than that of the kept
    dict. So do generators, from which a program draws. Raises SetupRefused if one is of another kind than the saved
    one. `of_model`: the storages of the model. A tensor there is replaced: to fill it would change the model.
    """
    if is_generator(old):
        if not (type(saved) is tuple and restore(old, saved)):
            kind = f"{type(old).__module__.partition('.')[0]} {type(old).__name__}"
            raise SetupRefused(
                f"the checkpoint holds the state of no {kind}; keep the generator that it was written with"
            )
        return old
    if type(old) is list and type(saved) is list:
        old[:] = saved
        return old
    if type(old) is dict and type(saved) is dict:
        items = {key: _refill(old.get(key), one, of_model) for key, one in saved.items()}
        old.clear()
        old.update(items)
        return old
    if _can_be_filled(old, saved, of_model):
        with torch.no_grad():
            old[...] = saved
        return old
    return saved


def _can_be_filled(old: Any, saved: Any, of_model: Collection[int]) -> bool:
    """Return whether a tensor or an array can take the saved one's values: it is of the same shape and dtype."""
    if type(old) is not type(saved) or not isinstance(old, torch.Tensor | np.ndarray):
        return False
    if (old.shape, old.dtype) != (saved.shape, saved.dtype):
        return False
    if isinstance(old, torch.Tensor):
        return old.layout is torch.strided and old.untyped_storage().data_ptr() not in of_model
    return bool(old.flags.writeable)


class LoopTask(GivenTask):
    """The task of a loop of the user's own: its state is that of the kept objects."""

    CALL = "run()"
    AGAIN = "Start the program again"
    steps_itself = True

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.kept: dict[str, Any] = {}
        # The code of the loop, which a message about it gives a line of.
        self.loop_codes: tuple[CodeType, ...] = ()

    def keep(self, name: str, kept: Any) -> None:
        """Make the state of an object, or the items of a dict, a part of the run's. Raises LoopMisused."""
        if _NAME.fullmatch(name) is None:
            raise LoopMisused(f"keep({name!r}): a name has letters, digits and _ . -, at most 64")
        if name in self.kept:
            raise LoopMisused(f"keep({name!r}): an object of this name is kept already")
        if is_generator(kept):
            kept = {"generator": kept}
        if type(kept) is dict:
            kept = _Items(kept, self._model)
        if not all(callable(getattr(kept, method, None)) for method in ("state_dict", "load_state_dict")):
            raise LoopMisused(f"keep({name!r}): a {type(kept).__name__} has no state_dict() and load_state_dict(state)")
        self.kept[name] = kept

    def remembered(self) -> Callable[[], None]:
        """Return a function that puts kept objects and the process-wide generators back to their present state.

        In mid-epoch a loop makes once more what its epoch begins with, such as the draw of a subset. That moves a
        generator for the second time.
        """
        states, kept = rng_states(), {name: copy.deepcopy(one.state_dict()) for name, one in self.kept.items()}

        def put_back() -> None:
            set_rng_states(states)
            for name, held in kept.items():
                self.kept[name].load_state_dict(held)

        return put_back

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each kept object, and of the program's own task."""
        own = getattr(self._task, "state_dict", None)
        kept = {name: one.state_dict() for name, one in self.kept.items()}
        return {"kept": kept, "task": own() if callable(own) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises SetupRefused if an object is missing."""
        if state.keys() != {"kept", "task"}:
            raise SetupRefused("the checkpoint was written by Tolaria.train with a task; continue the run by train")
        if added := [name for name in self.kept if name not in state["kept"]]:
            _log.warning("the checkpoint holds no %s: what is kept under this name stays as it is", ", ".join(added))
        if missing := [name for name in state["kept"] if name not in self.kept]:
            raise SetupRefused(
                f"the checkpoint holds {', '.join(missing)}: call run.keep({missing[0]!r}, ...) before run.epochs(), "
                "as the program did that wrote it"
            )
        for name, held in state["kept"].items():
            try:
                self.kept[name].load_state_dict(held)
            except SetupRefused as error:
                raise SetupRefused(f"{name}: {error}") from None
        if state["task"] is not None:
            self._task.load_state_dict(state["task"])


def for_own_loop(settings: Settings, model: nn.Module, optimizers: Any) -> Settings:
    """Return the settings for a user's loop: on the model's device, at the optimizers' own rates if none are set.

    Raises SetupRefused if the loop cannot do what the settings say.
    """
    if not isinstance(model, torch.nn.Module):
        raise SetupRefused(f"the model that you pass to run() is a {type(model).__name__}; pass a torch.nn.Module")
    if settings.precision == "bf16":
        raise SetupRefused(
            "precision is bf16, but your loop makes the forward pass: remove precision, and put the forward pass into "
            "`with torch.autocast(device, torch.bfloat16):`"
        )
    first = next(iter(optimizers.values()), None) if isinstance(optimizers, Mapping) else optimizers
    plain = replace(settings, learning_rate=LearningRate())
    if isinstance(first, torch.optim.Optimizer) and settings in (plain, with_implied_warmup(plain)):
        rate = float(first.param_groups[0]["lr"])
        least = min(settings.learning_rate.min_lr, rate)
        rates = replace(settings.learning_rate, base_lr=rate, policy="constant", warmup_epochs=0, min_lr=least)
        settings = replace(settings, learning_rate=rates)
    at = next(model.parameters(), torch.empty(0)).device
    return replace(settings, device=str(at)) if settings.device == "auto" else settings
