"""Copies of a model for trials, and the tensors in what it takes and gives.

Promises: the model is not touched. A copy shares no parameter and no buffer with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from tolariad.trainer.pruning.units import PruningRefused
from tolariad.trainer.torch_private.tensors import leaves_in, with_leaves

# The tensors in the attributes of objects that are no containers to torch, so many objects deep.
_DEPTH_MAX: Final = 3
_OF_A_MODULE: Final = ("_parameters", "_buffers", "_modules")


class _CopiesResults(TorchFunctionMode):
    """Copies tensors that were computed, which torch refuses: a weight that a hook computes, an output that is kept."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model. Attributes of a kind that cannot be copied, such as a lock, are shared with it.

    Raises PruningRefused if it cannot be copied even so.
    """
    with _CopiesResults():
        try:
            return copy.deepcopy(model)
        except Exception:  # noqa: BLE001 - a `__deepcopy__` of the user's may raise anything
            shared = {id(value): value for value in _attributes(model) if not _can_be_copied(value)}
        try:
            return copy.deepcopy(model, shared)
        except Exception as error:
            raise PruningRefused(f"the model cannot be copied: {type(error).__name__}: {error}") from error


def _attributes(model: nn.Module) -> Iterable[Any]:
    return (value for one in model.modules() for name, value in vars(one).items() if name not in _OF_A_MODULE)


def _can_be_copied(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def tensors_in(value: Any, depth: int = 0) -> list[Tensor]:
    """Return the tensors in a value: those in containers, and in the attributes of other objects."""
    found: list[Tensor] = []
    for leaf in leaves_in(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, PackedSequence):
            found.append(leaf.data)
        elif depth < _DEPTH_MAX and not isinstance(leaf, nn.Module | type) and hasattr(leaf, "__dict__"):
            found += tensors_in(list(vars(leaf).values()), depth + 1)
    return found


def with_tensors(value: Any, change: Callable[[Tensor], Any], depth: int = 0) -> Any:
    """Return a value whose tensors are changed; other objects that hold tensors are copied."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=change(leaf.data))
        if depth >= _DEPTH_MAX or not tensors_in(leaf, depth):
            return leaf
        other = copy.copy(leaf)
        attributes: Mapping[str, Any] = vars(leaf)
        for name, held in attributes.items():
            object.__setattr__(other, name, with_tensors(held, change, depth + 1))
        return other

    return with_leaves(changed, value)
