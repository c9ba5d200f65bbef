"""The version of a tensor, and the tensors in nested values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor

from tolariad.trainer.torch_private.choice import private

# The version of a tensor is not known.
UNKNOWN: Final = -1


def _unknown(_: Tensor) -> int:
    """Return that the version is not known. There is no public way to read it: a reader must compare values."""
    return UNKNOWN


# How often a tensor was written to, as autograd counts. Every step calls it.
version_of: Final[Callable[[Tensor], int]] = (
    _unknown
    if private(Tensor, "_version", "large buffers are copied in every step") is None
    else attrgetter("_version")
)


def leaves_in(value: Any) -> list[Any]:
    """Return what nested lists, tuples, mappings and classes that are registered with torch contain.

    The public way knows lists, tuples and mappings only, as what other classes are is registered privately.
    """
    return list(_walked(value)) if _trees is None else list(_trees.tree_leaves(value))


def with_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the same nested value with `function` of each leaf in its place. The public way knows as much as above."""
    return _mapped(function, value) if _trees is None else _trees.tree_map(function, value)


def _walked(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _walked(one)
    else:
        yield value


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, MutableMapping):
        # A copy keeps the class, and what it holds beside its items.
        found = copy.copy(value)
        for key in value:
            found[key] = _mapped(function, value[key])
        return found
    if isinstance(value, list | tuple):
        items = [_mapped(function, one) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value)


try:
    import torch.utils._pytree
except ImportError:
    _trees: Any = None
else:
    _trees = private(torch.utils, "_pytree")
