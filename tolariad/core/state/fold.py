"""What a slice's fold is: a function by event type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from tolariad.core import messages as m

# The fold of one event into a slice: a function of (the slice, the event, the event's number and root) -> the slice.
Fold: TypeAlias = Callable[[Any, Any, m.Cause], Any]
# The fold of one slice, by event type.
ApplyTable = dict[type[m.Event], Fold]


def by_order(folds: Mapping[type[m.BoundaryOrder], Callable[[Any, Any, Any], Any]]) -> Fold:
    """Return the fold of an event with a boundary order: by its kind, a function of (the slice, the order, the event).

    Of other kinds the slice stays as it is.
    """

    def fold(before: Any, event: m.OrderGiven | m.OrderActed | m.OrderAborted, _: m.Cause) -> Any:
        one = folds.get(type(event.order))
        return before if one is None else one(before, event.order, event)

    return fold


def setting(**fields: Any) -> Fold:
    """Return a fold that sets these fields of the slice, whatever the event holds."""
    return lambda before, _, __: replace(before, **fields)
