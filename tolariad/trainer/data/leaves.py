"""The leaves of a state: values that a checkpoint can hold, copied, compared, and put back in place.

A leaf is a tuple whose first entry is its kind:

    =  a plain value                 n  a list of numbers, as an array
    l  a list                        a  an array
    q  a deque                       t  a tensor
    d  a dict                        g  a generator
    s  a set                         c  an itertools.count
    b  a bytearray                   o  the state of an object that has `state_dict`
    v  a shared number or array of `multiprocessing`
    ?  anything else, by the name of its type

Promises: a leaf shares no memory with the value. A container, an array, a tensor and a generator get their content back
and stay the same objects: who else holds them sees it too.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import re
from collections import OrderedDict, deque
from multiprocessing import sharedctypes
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from tolariad.trainer.checkpoints.tree import NotCapturable, encode_tree
from tolariad.trainer.data import generators

Leaf: TypeAlias = "tuple[Any, ...]"
_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_LONG: Final = 64
_FIXED: Final = _SCALARS | {tuple}
_INT64: Final = 2**63
_DEPTH_MAX: Final = 8
_COUNT: Final = re.compile(r"count\((-?\d+)(?:, (-?\d+))?\)")
_CONTAINERS: Final = (list, tuple, dict, OrderedDict, deque, set, frozenset, bytearray)


class Known:
    """Leaves of long lists whose entries cannot change, such as pairs of a path and a label.

    While such a list has the same entries, it has the same leaf: they are looked at once.
    """

    def __init__(self) -> None:
        # With the lists themselves, so that no other one gets their id.
        self._held: dict[int, tuple[list[Any], Leaf]] = {}

    def leaf(self, value: list[Any]) -> Leaf | None:
        """Return the leaf of this list; None if its entries may change."""
        held, leaf = self._held.get(id(value), (None, ("l", ())))
        if held is value and len(leaf[1]) == len(value) and all(map(operator.is_, value, leaf[1])):
            return leaf
        if not all(map(_is_fixed, value)):
            return None
        leaf = "l", list(value)
        self._held[id(value)] = value, leaf
        return leaf


class Budget:
    """How much more a state may hold: elements of containers, and bytes of arrays."""

    def __init__(self, elements: int, array_bytes: int, known: Known | None = None) -> None:
        self.elements, self.array_bytes, self.known = elements, array_bytes, known or Known()

    def copy(self) -> Budget:
        """Return what is left now."""
        return Budget(self.elements, self.array_bytes, self.known)

    def be_as(self, other: Budget) -> None:
        """Have as much left as another one."""
        self.elements, self.array_bytes = other.elements, other.array_bytes

    def takes(self, elements: int) -> bool:
        """Return whether so many elements fit, and count them."""
        if elements > self.elements:
            return False
        self.elements -= elements
        return True

    def takes_bytes(self, size: int) -> bool:
        """Return whether so many bytes fit, and count them."""
        if size > self.array_bytes:
            return False
        self.array_bytes -= size
        return True


class _NoLeafError(Exception):
    """The value holds something that is not plain, or too much."""


def leaf_of(value: Any, budget: Budget) -> Leaf | None:
    """Return the leaf of a value; None if it is none: an object, a container of objects, or too large."""
    kind = type(value)
    if kind in _SCALARS or isinstance(value, np.generic):
        return ("=", value) if not isinstance(value, np.generic) or value.dtype.kind in "biufc" else None
    if kind is np.ndarray or isinstance(value, torch.Tensor):
        return _array_leaf(value, budget)
    if kind in _CONTAINERS or isinstance(value, (list, dict)):
        return _container_leaf(value, budget)
    if kind is itertools.count:
        found = _COUNT.fullmatch(repr(value))
        return ("c", int(found[1]), int(found[2] or 1)) if found else None
    if (shared := _shared(value)) is not None:
        content = list(shared) if isinstance(shared, ctypes.Array) else shared.value
        return ("v", content) if _is_fixed(tuple(content) if isinstance(content, list) else content) else None
    if generators.is_generator(value):
        try:
            return "g", generators.state_of(value)
        except (TypeError, ValueError, NotImplementedError):  # a subclass of the user's own
            return None
    return None


def _shared(value: Any) -> Any:
    """Return what a `multiprocessing.Value` or `Array` holds, without its lock: a worker may have died with it."""
    if type(value).__module__ != sharedctypes.__name__ or not hasattr(type(value), "get_obj"):
        return None
    held = value.get_obj()
    return held if isinstance(held, ctypes.Array) or hasattr(type(held), "value") else None


def _array_leaf(value: Any, budget: Budget) -> Leaf | None:
    if not budget.takes_bytes(value.nbytes):
        return None
    if isinstance(value, np.ndarray):
        return ("a", value.copy()) if value.dtype.kind in "biufc" else None
    if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu" or value.is_conj():
        return None
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return "t", str(value.dtype).removeprefix("torch."), tuple(value.shape), raw.numpy().copy()


def _container_leaf(value: Any, budget: Budget) -> Leaf | None:
    left = budget.copy()
    try:
        return _content(value, budget)
    except _NoLeafError:
        # What is too large itself takes nothing from those that follow.
        budget.be_as(left)
        return None


def _content(value: Any, budget: Budget) -> Leaf:
    """Return the leaf of a container. Raises _NoLeafError."""
    if isinstance(value, bytearray):
        if not budget.takes_bytes(len(value)):
            raise _NoLeafError
        return "b", bytes(value)
    if isinstance(value, (tuple, frozenset)):
        return "=", _copied(value, budget, 0)
    if type(value) is list and len(value) >= _LONG:
        return _of_long_list(value, budget)
    if not budget.takes(len(value)):
        raise _NoLeafError
    if isinstance(value, dict):
        return "d", [(key, _copied(one, budget, 1)) for key, one in value.items() if _is_key(key)]
    if isinstance(value, set):
        return "s", sorted((_copied(one, budget, 1) for one in value), key=repr)
    return "q" if isinstance(value, deque) else "l", [_copied(one, budget, 1) for one in value]


def _of_long_list(value: list[Any], budget: Budget) -> Leaf:
    """Numbers count as an array. Entries that cannot change are looked at once, and count as an eighth."""
    kinds = set(map(type, value[:_LONG]))
    if kinds <= {int, float} and len(value) * 8 <= budget.array_bytes and (packed := _numbers(value)) is not None:
        budget.takes_bytes(packed.nbytes)
        return "n", packed
    if kinds <= _FIXED and budget.takes(len(value) // 8) and (known := budget.known.leaf(value)) is not None:
        return known
    entry = value[0]
    # Entries are mostly alike: most lists that are too large are known by their first one.
    if len(value) * (1 + len(entry) if isinstance(entry, (list, tuple, dict)) else 1) > budget.elements:
        raise _NoLeafError
    budget.takes(len(value))
    return "l", [_copied(one, budget, 1) for one in value]


def _is_fixed(value: Any) -> bool:
    """Return whether a plain value cannot change."""
    return type(value) in _SCALARS or (type(value) is tuple and _SCALARS.issuperset(map(type, value)))


def _is_key(key: Any) -> bool:
    """Return True for a plain key. Raises _NoLeafError for any other."""
    _copied(key, Budget(_LONG, 0), 0)
    return True


def _numbers(value: list[Any]) -> np.ndarray[Any, Any] | None:
    """Return a list of only int or only float as an array: a checkpoint writes it a hundred times faster."""
    kinds = set(map(type, value))
    if kinds == {float}:
        return np.array(value, dtype=np.float64)
    if kinds == {int} and -_INT64 <= min(value) and max(value) < _INT64:
        return np.array(value, dtype=np.int64)
    return None


def _copied(value: Any, budget: Budget, depth: int) -> Any:
    """Return a copy of nested plain data. Raises _NoLeafError."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value
    if depth == _DEPTH_MAX:
        raise _NoLeafError
    if kind is np.ndarray and value.dtype.kind in "biufc" and budget.takes_bytes(value.nbytes):
        return value.copy()
    if kind not in (list, tuple, dict) or not budget.takes(len(value)):
        raise _NoLeafError
    if _SCALARS.issuperset(map(type, value)) and (kind is not dict or _SCALARS.issuperset(map(type, value.values()))):
        return value if kind is tuple else kind(value)
    if kind is dict:
        return {_copied(k, budget, depth + 1): _copied(one, budget, depth + 1) for k, one in value.items()}
    return kind(_copied(one, budget, depth + 1) for one in value)


def same(one: Any, other: Any) -> bool:
    """Return whether two leaves, or what is in them, are equal: in types too, and by bits."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, (tuple, list)):
        if len(one) != len(other):
            return False
        if _SCALARS.issuperset(map(type, one)) and all(map(operator.is_, map(type, one), map(type, other))):
            # In one call, unless a NaN is among them.
            return one == other or all(map(same, one, other))
        return all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if one != one and other != other:  # noqa: PLR0124
        return True
    return bool(one == other)


def put_back(live: Any, leaf: Leaf) -> tuple[bool, Any]:
    """Put the content of a leaf into the live value. Return whether that was possible, and else a new value."""
    match leaf:
        case "g", state:
            if generators.is_generator(live) and generators.restore(live, state):
                return True, live
            return False, generators.made_of(state)
        case "a", array:
            if type(live) is np.ndarray and (live.dtype, live.shape) == (array.dtype, array.shape):
                if live.flags.writeable:
                    live[...] = array
                return True, live
            return False, array.copy()
        case "t", dtype, shape, raw:
            tensor = torch.from_numpy(raw.copy()).view(getattr(torch, dtype)).reshape(shape)
            if isinstance(live, torch.Tensor) and (live.dtype, live.shape) == (tensor.dtype, tensor.shape):
                with torch.no_grad():
                    live.copy_(tensor)
                return True, live
            return False, tensor
        case "v", content:
            shared = _shared(live)
            if shared is not None and isinstance(content, list) and len(shared) == len(content):
                shared[:] = content
            elif shared is not None and not isinstance(content, list):
                shared.value = content
            return True, live
        case "c", number, step:
            return False, itertools.count(number, step)
        case "=", value:
            return False, value
    return _put_into(live, leaf)


def _put_into(live: Any, leaf: Leaf) -> tuple[bool, Any]:
    """Fill a container."""
    kind, content = leaf[0], leaf[1].tolist() if leaf[0] == "n" else leaf[1]
    match kind:
        case "n":
            made: Any = live if isinstance(live, list) else []
            made[:] = content
        case "l":
            made = live if isinstance(live, list) else []
            made[:] = [_filled(*pair) for pair in itertools.zip_longest(made[: len(content)], content)]
        case "q":
            made = live if isinstance(live, deque) else deque()
            made.clear()
            made.extend(content)
        case "d":
            made = live if isinstance(live, dict) else {}
            items = [(key, _filled(made.get(key), value)) for key, value in content]
            made.clear()
            # Not by `update`, which means something else for a Counter.
            for key, value in items:
                made[key] = value
        case "s":
            made = live if isinstance(live, set) else set()
            made.clear()
            made.update(content)
        case _:
            made = live if isinstance(live, bytearray) else bytearray()
            made[:] = content
    return made is live, made


def _filled(live: Any, saved: Any) -> Any:
    """Return what a place of a container gets: the list, dict or array that is there, if it can be filled."""
    if type(live) is list and type(saved) is list:
        live[:] = [_filled(*pair) for pair in itertools.zip_longest(live[: len(saved)], saved)]
        return live
    if type(live) is dict and type(saved) is dict:
        items = [(key, _filled(live.get(key), value)) for key, value in saved.items()]
        live.clear()
        live.update(items)
        return live
    if isinstance(saved, np.ndarray):
        return put_back(live, ("a", saved))[1]
    return saved


def can_be_written(value: Any) -> bool:
    """Return whether a checkpoint can hold this."""
    try:
        encode_tree(value, "state")
    except NotCapturable:
        return False
    return True
