"""The generators that only the data hold: a data set, its transforms, a collate function.

They are seeded with each item, as the process-wide ones are. One that the model or the task holds too belongs to the
training: it is left alone in the trainer's process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tolariad.trainer.data.generators import is_generator
from tolariad.trainer.data.walk import Place, attributes_of, walk

_OBJECTS_MAX: Final = 2000
_NONE: Final = object()


def held_by(*roots: Any) -> Iterator[Any]:
    """Yield the generators below these objects, each once."""
    for value in _below(roots):
        if is_generator(value):
            yield value


def with_set_epoch(*roots: Any) -> Iterator[Any]:
    """Yield the objects below that have `set_epoch`."""
    for value in _below(roots):
        own = (attributes_of(value) or {}).get("set_epoch", _NONE)
        if callable(getattr(type(value), "set_epoch", None) if own is _NONE else own):
            yield value


def _below(roots: Iterable[Any]) -> Iterator[Any]:
    places = [Place(f"root {number}", root) for number, root in enumerate(roots)]
    return (met.value for met in walk(places, limit=_OBJECTS_MAX))


def shared_with(training: Iterable[Any], data: Iterable[Any]) -> set[int]:
    """Return the ids of the generators that are held by the training beside the data.

    `training` holds model, optimizers and task. Objects below `data` are entered from there only.
    """
    of_data = [met.value for met in walk([Place("data", list(data))], limit=_OBJECTS_MAX)]
    generators = {id(one) for one in of_data if is_generator(one)}
    if not generators:
        return set()
    closed = {id(one) for one in of_data} - generators
    found: set[int] = set()
    for one in training:
        found |= {id(held) for held in _entered(one, closed)} & generators
    return found


def _entered(root: Any, closed: set[int]) -> Iterator[Any]:
    from torch import nn

    # A module is closed to the walk: enter each by its attributes.
    modules = list(root.modules()) if isinstance(root, nn.Module) else []
    roots = [vars(one) for one in modules] or [root]
    for met in walk([Place("training", one) for one in roots], closed, limit=100_000):
        yield met.value
