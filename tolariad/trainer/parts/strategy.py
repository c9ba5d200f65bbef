"""The strategy's state as the training holds it: bytes that every capture contains, and that go back with a rollback.

The strategy lives in another process, and its vote is asked for there. Here are only its bytes. Promise: they change at
the ends of epochs only, by a boundary order, so a re-run has the same bytes at the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core import messages as m
from tolariad.trainer.orders.numbered import Kind, OrderRefused
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.parts.part import Orders, Trained


class StrategyPart(Part):
    """The bytes; empty if the run has no strategy, or it has nothing to remember."""

    name = "strategy"

    def __init__(self) -> None:
        self._held = b""

    @property
    def span(self) -> str:
        return "strategy" if self._held else "rest"

    def state(self) -> State:
        # Absent without a strategy: such checkpoints are the same as those of older versions.
        return State({"strategy": self._held} if self._held else {})

    def load(self, held: Restoring) -> None:
        self._held = held.entry("strategy") or b""

    def orders(self, trained: Trained) -> Orders:
        def keep(order: m.KeepStrategyState) -> None:
            at = trained.position()
            if (at.epoch, at.batch) != (order.epoch + 1, 0):
                # A rollback came between: the state belongs to the branch that was left.
                raise OrderRefused(f"it is of the end of epoch {order.epoch}, and training is in epoch {at.epoch}")
            self._held = order.state

        return {m.KeepStrategyState: Kind(keep)}
