"""Boundary orders of every kind: each is given to the handler of its kind, counted and answered.

Promises: an order acts once, in this trainer and in those that restore its checkpoints. The orders of a script act at their
places, before any that waits. The answer to an order is reported before any checkpoint that contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from tolariad.core.boundary.words import BoundaryOrder, BoundaryOrderReport

if TYPE_CHECKING:
    from tolariad.core.boundary.order_words import AnyBoundaryOrder
    from tolariad.core.steps.script_words import ScriptOrder
    from tolariad.trainer.orders.acted import ActedOrders
    from tolariad.trainer.orders.link import Link

_Kind = TypeVar("_Kind", bound="AnyBoundaryOrder")


class OrderRefused(Exception):
    """A boundary order cannot act. The text says why, for whoever gave it; nothing was changed."""


class BoundaryOrders:
    """The trainer's numbered list. `acted` belongs to the state that is trained."""

    def __init__(self, acted: ActedOrders, link: Link) -> None:
        self._acted = acted
        self._inbox, self._reporter, self._progress = link.inbox, link.reporter, link.progress
        self._handlers: dict[type, Callable[[Any], None]] = {}

    def register(self, kind: type[_Kind], handler: Callable[[_Kind], None]) -> None:
        """`handler` carries out orders of this kind, or raises OrderRefused. Raises ValueError if there is one already."""
        self._inbox.register(kind, self._obey)
        self._handlers[kind] = handler

    def _obey(self, order: BoundaryOrder) -> None:
        """Carry out an order from the next update on, and answer it. One that was answered before has no effect."""
        if order.cause in self._acted:
            return
        refused = ""
        try:
            self._handlers[type(order)](order)
        except OrderRefused as error:
            refused = str(error)
            self._acted.remember(order.cause)
        else:
            self._acted.add(order.cause)
        before_step = self._progress.step + 1
        self._reporter.report(BoundaryOrderReport(order=order.cause, applied_before_step=before_step, refused=refused))

    def repeat(self, orders: Iterable[ScriptOrder]) -> None:
        """Carry out the orders of a script that acted at this place, except those that the checkpoint contains."""
        for one in orders:
            if one.number > self._acted.count:
                self._handlers[type(one.order)](one.order)
                self._acted.add(one.order.cause)
