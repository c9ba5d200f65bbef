"""The strategy's state as the training holds it: bytes that every capture contains, and that go back with a rollback.

The strategy lives in another process, and its vote is asked for there. Here are only its bytes. Promise: they change at
the ends of epochs only, by a boundary order, so a re-run has the same bytes at the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core import messages as m
from tolariad.trainer.orders.numbered import OrderRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders.numbered import BoundaryOrders


class StrategyState:
    """The bytes; empty if the run has no strategy, or it has nothing to remember."""

    def __init__(self) -> None:
        self.state = b""

    def restored(self, state: bytes) -> None:
        """Hold the bytes of a capture."""
        self.state = state

    def obey(self, orders: BoundaryOrders, position: Callable[[], Position]) -> None:
        """Take new bytes from the daemon's orders. `position`: the place of training."""

        def keep(order: m.KeepStrategyState) -> None:
            at = position()
            if (at.epoch, at.batch) != (order.epoch + 1, 0):
                # A rollback came between: the state belongs to the branch that was left.
                raise OrderRefused(f"it is of the end of epoch {order.epoch}, and training is in epoch {at.epoch}")
            self.state = order.state

        orders.register(m.KeepStrategyState, keep)
