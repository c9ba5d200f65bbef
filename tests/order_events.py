"""The events of one kind of boundary order, as a type: `isinstance(event, acted(m.SetRate))`."""

from __future__ import annotations

from functools import cache

from tolariad.core import messages as m


class _OfOneKind(type):
    """A type whose instances are the events of one type with an order of one kind."""

    event: type[m.Event]
    order: type[m.BoundaryOrder]

    def __instancecheck__(cls, event: object) -> bool:
        return isinstance(event, cls.event) and isinstance(getattr(event, "order", None), cls.order)


@cache
def _of(event: type[m.Event], order: type[m.BoundaryOrder]) -> type:
    return _OfOneKind(f"{event.__name__}:{order.__name__}", (), {"event": event, "order": order})


def given(order: type[m.BoundaryOrder]) -> type:
    """OrderGiven with an order of this kind."""
    return _of(m.OrderGiven, order)


def acted(order: type[m.BoundaryOrder]) -> type:
    """OrderActed with an order of this kind."""
    return _of(m.OrderActed, order)


def aborted(order: type[m.BoundaryOrder]) -> type:
    """OrderAborted with an order of this kind."""
    return _of(m.OrderAborted, order)
