"""Walk through the objects that a sampler, a data set or a function of the user's own holds.

The walk follows attributes, slots, containers, closures, defaults, the globals that a user's function names, and the
values of a user's class. Promises: it calls none of the user's code, no property and no `__getattr__`. It visits a
bounded number of objects, each once, and in an order that is the same in every process.
"""

from __future__ import annotations

import dis
import enum
import functools
import io
import itertools
import logging
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from tolariad.trainer.data.generators import is_generator

# Of a longer container only the first entries are visited.
WHOLE: Final = 64
_FIRST: Final = 8
# A value without parts.
ATOMS: Final = (str, bytes, int, float, complex, bool, type(None), type, enum.Enum, range, slice, re.Pattern)
# Objects of torch, NumPy and the system that hold no state of the data.
_CLOSED: Final = (
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    io.IOBase,
    logging.Logger,
    np.dtype,
    torch.dtype,
    torch.device,
    torch.optim.Optimizer,
    torch.nn.Module,
)
# Their classes and functions are no code of the user's.
_LIBRARIES: Final = frozenset({"torch", "torchdata", "torchvision", "numpy", "tolariad", "journal", "builtins"})
_CLOSED_ROOMS: Final = frozenset(
    {"_thread", "threading", "multiprocessing", "socket", "weakref", "asyncio", "tolariad"}
)
# What torch's iterator of a loader holds is a running epoch.
_RUNNING: Final = frozenset({"_iterator", "_DataLoader__multiprocessing_context"})


class Place(NamedTuple):
    """One value and where it lies. `put` replaces it there; None if that is impossible."""

    path: str
    value: Any
    put: Callable[[Any], None] | None = None


class Met(NamedTuple):
    """An object that the walk visits, and the places in it."""

    path: str
    value: Any
    places: list[Place]


def walk(
    roots: Iterable[Place], closed: Collection[int] = (), limit: int = 2000, whole: Collection[int] = ()
) -> Iterator[Met]:
    """Yield the roots and the objects below them, breadth first. `closed`: ids of objects that are not entered.

    `whole`: the same, and may grow while the walk goes on.
    """
    seen = set(closed)
    waiting, left = deque(roots), limit
    while waiting and left:
        path, value, _ = waiting.popleft()
        if id(value) in seen or id(value) in whole:
            continue
        try:
            places = None if isinstance(value, ATOMS) or is_closed(value) else list(places_in(value, path))
        except Exception:  # noqa: BLE001 - a proxy raises anything, already when it is asked for its class
            places = None
        if places is None:
            continue
        seen.add(id(value))
        left -= 1
        yield Met(path, value, places)
        waiting.extend(places)


def is_closed(value: Any) -> bool:
    """Return whether the walk does not enter this object."""
    if isinstance(value, _CLOSED) or is_running(value):
        return True
    room = type(value).__module__.partition(".")[0]
    return room in _CLOSED_ROOMS and not isinstance(value, types.FunctionType)


def is_running(value: Any) -> bool:
    """Return whether this is an iterator that nobody can read, such as torch's of a loader with its queues.

    One of the user's own class keeps its place in attributes.
    """
    return hasattr(type(value), "__next__") and not is_users(type(value))


def is_users(value: Any) -> bool:
    """Return whether a class, function or module is the user's own, and not that of torch, NumPy or Python."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    room = str(name or "").partition(".")[0]
    return room not in _LIBRARIES and room not in sys.stdlib_module_names


def has_thread_of_the_user() -> bool:
    """Return whether a thread runs a function, or is of a class, of the user's own."""
    for thread in threading.enumerate():
        target = (attributes_of(thread) or {}).get("_target")
        if is_users(type(thread)) or (target is not None and is_users(target)):
            return True
    return False


def threads_that_may_draw() -> int:
    """Return how many threads there are, without those by which torch and Python pass items between processes."""
    targets = ((attributes_of(thread) or {}).get("_target") for thread in threading.enumerate())
    rooms = (str(getattr(target, "__module__", "")).partition(".")[0] for target in targets)
    return sum(room not in ("multiprocessing", "torch") for room in rooms)


def places_in(value: Any, path: str) -> Iterator[Place]:
    """Yield the places in one object. A generator, a tensor and an array have none."""
    if is_generator(value) or isinstance(value, (torch.Tensor, np.ndarray)):
        return
    if isinstance(value, Mapping) and not hasattr(type(value), "__next__"):
        yield from _items(value, path)
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        yield from _entries(value, path)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, path)
        return
    elif isinstance(value, types.MethodType):
        yield Place(f"{path}.__self__", value.__self__)
        yield Place(f"{path}.__func__", value.__func__)
        return
    elif isinstance(value, functools.partial):
        yield Place(f"{path}.func", value.func)
        yield Place(f"{path}.args", value.args)
        yield Place(f"{path}.keywords", value.keywords)
    yield from _attributes(value, path)
    yield from _of_class(type(value))


def _items(value: Mapping[Any, Any], path: str) -> Iterator[Place]:
    try:
        found = list(value.items() if len(value) <= WHOLE else itertools.islice(value.items(), _FIRST))
    except Exception:  # noqa: BLE001 - a mapping of the user's own may raise anything
        return
    for key, one in found:
        put = functools.partial(_set_item, value, key) if isinstance(value, dict) else None
        yield Place(f"{path}[{key!r}]", one, put)


def _entries(value: Any, path: str) -> Iterator[Place]:
    found = value if len(value) <= WHOLE else itertools.islice(value, _FIRST)
    for index, one in enumerate(list(found)):
        put = functools.partial(_set_item, value, index) if isinstance(value, (list, deque)) else None
        yield Place(f"{path}[{index}]", one, put)


def _of_function(value: types.FunctionType, path: str) -> Iterator[Place]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield Place(f"{path}<{name}>", held, functools.partial(setattr, cell, "cell_contents"))
    for index, default in enumerate(value.__defaults__ or ()):
        yield Place(f"{path}<default {index}>", default)
    for name, default in (value.__kwdefaults__ or {}).items():
        yield Place(f"{path}<default {name}>", default)
    if is_users(value):
        yield from _globals_of(value)


def _globals_of(function: types.FunctionType) -> Iterator[Place]:
    """Yield the globals that a function, or a function within it, names, and `module.name` of a module of the user's.

    Their paths begin with the module: a global is the same one for everybody who names it.
    """
    module = function.__globals__
    of_module, attributes = _names_in(function.__code__)
    for name in of_module:
        if name not in module:
            continue
        value = module[name]
        if not isinstance(value, types.ModuleType):
            yield Place(f"{module.get('__name__')}:{name}", value, functools.partial(_set_item, module, name))
        elif is_users(value):
            held = vars(value)
            for inner in attributes:
                if inner in held and not isinstance(held[inner], types.ModuleType):
                    yield Place(f"{value.__name__}:{inner}", held[inner], functools.partial(_set_item, held, inner))


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globals and the attributes that a function, or a function within it, names."""
    of_module: dict[str, None] = {}
    attributes = dict.fromkeys(code.co_names)
    for one in dis.get_instructions(code):
        if one.opname.endswith(("_GLOBAL", "_NAME")):
            of_module[one.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner, more = _names_in(constant)
            of_module |= dict.fromkeys(inner)
            attributes |= dict.fromkeys(more)
    return tuple(of_module), tuple(attributes)


def _attributes(value: Any, path: str) -> Iterator[Place]:
    held = attributes_of(value)
    if held is not None:
        skipped = _RUNNING if isinstance(value, DataLoader) else ()
        for name in [name for name in held if name not in skipped]:
            yield Place(f"{path}.{name}", held[name], functools.partial(_set_item, held, name))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if _is_mangled(name) else name
            descriptor = kind.__dict__.get(mangled)
            if not isinstance(descriptor, types.MemberDescriptorType):
                continue
            try:
                held_there = descriptor.__get__(value)
            except AttributeError:
                continue
            yield Place(f"{path}.{mangled}", held_there, functools.partial(_set_slot, descriptor, value))


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the dict of an object's attributes, without the user's `__getattribute__`; None if it has none."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if isinstance(held, dict) else None


def _is_mangled(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _of_class(kind: type) -> Iterator[Place]:
    """Yield what a user's class holds itself: values, and its functions, which name globals."""
    for one in kind.__mro__:
        if not is_users(one):
            continue
        for name, value in list(vars(one).items()):
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            plain = plain.fget if isinstance(plain, property) else plain
            if isinstance(plain, types.FunctionType):
                # Of one class for all of its objects: named by the class.
                yield Place(f"{one.__module__}:{one.__qualname__}.{name}", plain)
            elif not (name.startswith("__") and name.endswith("__")) and not hasattr(type(plain), "__get__"):
                put = functools.partial(setattr, one, name)
                yield Place(f"{one.__module__}:{one.__qualname__}.{name}", value, put)


def _set_item(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def _set_slot(descriptor: Any, holder: Any, value: Any) -> None:
    descriptor.__set__(holder, value)
