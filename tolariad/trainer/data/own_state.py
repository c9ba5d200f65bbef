"""The state that a user's sampler or data set keeps in its own attributes: what of it has moved since it was built.

A sampler may draw from a generator of its own, count its epochs, or read a list that training changes. From another
state it gives another order. So a checkpoint holds that state by path: generators, and values that differ from those
with which the script built them. A value that training never moved is the script's, also if the user changes it there.

Promises: reading calls none of the user's code but `state_dict`. Restoring changes generators, lists, dicts, arrays and
tensors in place, so a hook that holds them too sees them. What cannot be saved is left as it is.
"""

from __future__ import annotations

import ast
import io
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tolariad.trainer.data.generators import is_generator
from tolariad.trainer.data.leaves import Budget, Known, Leaf, can_be_written, leaf_of, put_back, same
from tolariad.trainer.data.walk import ATOMS, Met, Place, attributes_of, is_closed, is_running, places_in, walk

_GONE: Final[Leaf] = ("?", "")


class Limits(NamedTuple):
    """The most that is looked at: objects, elements of containers, bytes of arrays."""

    objects: int
    elements: int
    array_bytes: int


OF_ORDER: Final = Limits(500, 1 << 20, 1 << 26)
OF_DATA: Final = Limits(2000, 1 << 15, 1 << 22)
Moved = dict[str, Leaf]
_CONTAINERS: Final = (list, tuple, dict, set, deque)


class _Live(NamedTuple):
    """One leaf as it is now, and the place that it lies in."""

    place: Place
    leaf: Leaf


def is_shared(value: Any) -> bool:
    """Return whether workers see each change of this value."""
    return isinstance(value, torch.Tensor) and value.is_shared()


class OwnState:
    """The state below some objects of the user's."""

    def __init__(
        self,
        roots: Callable[[], Iterable[Place]],
        limits: Limits,
        closed: Callable[[], Iterable[Any]] = tuple,
        *,
        leaves_out: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """`roots` gives the objects of the present epoch. `closed` gives objects that are not entered.

        `leaves_out` is called with a generator and returns True if the generator's state does not matter.
        """
        self._roots, self._limits, self._closed, self._leaves_out = roots, limits, closed, leaves_out
        # Iterators that are held, by path: nobody can read how far they are. And whether a model is held.
        self.iterators: list[str] = []
        self.holds_model = False
        self._known = Known()
        self._built = {path: live.leaf for path, live in self._read().items()}
        self._marks: dict[str, int] | None = None

    def moved(self) -> Moved:
        """Return the leaves that differ from those when this was built."""
        now = self._read()
        moved = {
            path: leaf
            for path, (place, leaf) in now.items()
            if (not self._leaves_out(place.value) if leaf[0] == "g" else not same(leaf, self._built.get(path)))
        }
        moved = {path: leaf for path, leaf in moved.items() if leaf[0] in "gnat?" or can_be_written(leaf)}
        return moved | {path: _GONE for path in self._built if path not in now}

    def marks(self) -> dict[str, int]:
        """Return a checksum of each value as the script built it."""
        if self._marks is None:
            self._marks = {path: _mark(leaf) for path, leaf in self._built.items() if leaf[0] != "g"}
        return self._marks

    def built_otherwise(self, marks: dict[str, int], moved: Moved) -> list[str]:
        """Return the paths of values that this script built otherwise than the one that gave `marks`.

        Without those that were moved, and are restored.
        """
        now = self.marks()
        return [path for path, mark in marks.items() if path not in moved and now.get(path, mark) != mark]

    def running(self) -> dict[str, Any]:
        """Return the iterators that are held, by path: nobody can read how far they are. A stream is none of them."""
        places = (place for met in self._walk() for place in met.places)
        return {
            place.path: place.value
            for place in places
            if _runs(place.value) and not isinstance(place.value, IterableDataset)
        }

    def differing(self, other: Moved, unless: Callable[[Any], bool] = lambda _: False) -> list[str]:
        """Return the paths at which the present state differs from another one.

        A difference does not count if `unless`, called with the present value, returns True.
        """
        now, live = self.moved(), self._read()
        return [
            path
            for path in {**now, **other}
            if not same(now.get(path), other.get(path)) and not (path in live and unless(live[path].place.value))
        ]

    def restore(self, moved: Moved) -> None:
        """Put the state back that `moved` returned, here or in another process that built the same objects."""
        wanted = self._built | moved
        # Twice: an object that is put back may hold places that the first pass could not see.
        for _ in range(2):
            now = self._read()
            for path, live in now.items():
                self._restore(live, wanted.get(path))
            for path, leaf in wanted.items():
                if path not in now and leaf[0] != "?":
                    self._make(path, leaf)

    def _restore(self, live: _Live, leaf: Leaf | None) -> None:
        path, value, put = live.place
        if live.leaf[0] == "g" and self._leaves_out(value):
            return
        if leaf is None or leaf == _GONE:
            # It did not exist then. Only an attribute can be taken away.
            if live.leaf[0] != "?" and "." in path and put is not None:
                self._remove(path)
        elif leaf[0] == "?" or same(live.leaf, leaf):
            return
        elif leaf[0] == "o":
            live.place.value.load_state_dict(leaf[1])
        else:
            filled, value = put_back(live.place.value, leaf)
            if not filled and put is not None:
                put(value)

    def _remove(self, path: str) -> None:
        holder, name = self._holder(path)
        (attributes_of(holder) or {}).pop(name, None)

    def _make(self, path: str, leaf: Leaf) -> None:
        """Set an attribute or an entry that the live object does not have yet, or holds in another way."""
        if path.endswith("]"):
            self._make_entry(path, leaf)
            return
        holder, name = self._holder(path)
        held = attributes_of(holder)
        if held is not None and name.isidentifier():
            held[name] = put_back(None, leaf)[1]

    def _make_entry(self, path: str, leaf: Leaf) -> None:
        """Set an entry of a list or a dict that held plain values only when the script built it."""
        begins = [at for at, letter in enumerate(path) if letter == "["]
        holders = {met.path: met.value for met in self._walk()}
        for at in begins:
            holder = holders.get(path[:at])
            if isinstance(holder, (list, dict)):
                with suppress(ValueError, SyntaxError, IndexError, TypeError):  # a key that is no plain value
                    holder[ast.literal_eval(path[at + 1 : -1])] = put_back(None, leaf)[1]
                    return

    def _holder(self, path: str) -> tuple[Any, str]:
        """Return the object whose attribute a path ends in, if it is there, and the attribute's name."""
        above, _, name = path.rpartition(".")
        return next((met.value for met in self._walk() if met.path == above), None), name

    def _walk(self, whole: Collection[int] = ()) -> Iterable[Met]:
        return walk(self._roots(), [id(one) for one in self._closed()], self._limits.objects, whole)

    def _read(self) -> dict[str, _Live]:
        """Return every leaf by its path, in the order of the walk."""
        budget = Budget(self._limits.elements, self._limits.array_bytes, self._known)
        closed = {id(one) for one in self._closed()}
        self.iterators, self.holds_model = [], False
        found: dict[str, _Live] = {}
        seen: set[int] = set()
        # Objects of which everything below is in their leaf.
        whole: set[int] = set()
        for root in self._roots():
            self._note(root, budget, found, seen, whole)
        for met in self._walk(whole):
            if isinstance(met.value, _CONTAINERS) and all(isinstance(place.value, ATOMS) for place in met.places):
                continue  # too large for a leaf
            for place in met.places:
                if id(place.value) not in closed:
                    self._note(place, budget, found, seen, whole)
        return found

    def _note(self, place: Place, budget: Budget, found: dict[str, _Live], seen: set[int], whole: set[int]) -> None:
        """Add the leaf of one place."""
        path, value, _ = place
        try:
            if id(value) in seen and not _is_shared_by_value(value):
                return
            leaf = leaf_of(value, budget) or self._of_object(place)
            if leaf[0] != "?" and not isinstance(value, ATOMS):
                whole.add(id(value))
        except Exception:  # noqa: BLE001 - as in the walk
            leaf = "?", type(value).__qualname__
        seen.add(id(value))
        found.setdefault(path, _Live(place, leaf))

    def _of_object(self, place: Place) -> Leaf:
        value = place.value
        if isinstance(value, nn.Module):
            self.holds_model = True
        elif _says_its_state(value):
            state = value.state_dict()
            if can_be_written(state):
                return "o", state
        elif _runs(value):
            self.iterators.append(place.path)
        return "?", type(value).__qualname__


def _runs(value: Any) -> bool:
    return is_running(value) and not isinstance(value, (io.IOBase, itertools.count))


def _mark(leaf: Leaf) -> int:
    if leaf[0] in "nat":
        return zlib.crc32(leaf[-1].tobytes(), zlib.crc32(repr(leaf[:-1]).encode()))
    return zlib.crc32(repr(leaf).encode("utf-8", "replace"))


def _is_shared_by_value(value: Any) -> bool:
    """Return whether equal values are one object by chance: numbers, texts, tuples."""
    is_container = isinstance(value, (list, dict, set, bytearray))
    return not is_container and not is_generator(value) and not hasattr(type(value), "dtype")


def _says_its_state(value: Any) -> bool:
    """Return whether an object can be asked only: it has `state_dict`, and no attribute that can be read.

    A `state_dict` may mean a position within an epoch: at the end of one it would leave nothing for the next.
    """
    # First what is quick: of thousands of objects hardly one has the method.
    if not any("state_dict" in vars(kind) for kind in type(value).__mro__):
        return False
    if is_closed(value) or isinstance(value, DataLoader) or any(places_in(value, "")):
        return False
    return all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict"))
