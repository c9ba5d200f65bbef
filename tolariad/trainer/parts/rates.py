"""The learning rates: the place in their schedules, and what orders and plateaus have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import rate_of
from tolariad.trainer.orders.numbered import Kind, OrderRefused
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.parts.part import Orders, Trained
    from tolariad.trainer.setup import Setup


class RatesPart(Part):
    """The rate controller. It is restored after the optimizers, whose groups it holds to their rates."""

    name = "rates"

    def __init__(self, setup: Setup) -> None:
        self._rates, self._watch = setup.rates, setup.watch

    def state(self) -> State:
        return State({"rates": self._rates.state_dict()})

    def load(self, held: Restoring) -> None:
        self._rates.restored(held.entry("rates"), held.position.step, held.position.epoch)

    def orders(self, trained: Trained) -> Orders:
        return {m.SetRate: Kind(self._set)}

    def _set(self, order: m.SetRate) -> None:
        """Apply an order from the next update on. Raises OrderRefused."""
        # The rate of the update before, as in RateSet.
        step = max(1, self._rates.global_step)
        before = {group.name: rate_of(group, step) for group in self._rates.groups}
        try:
            self._rates.apply_order(order.group, order.value, order.policy, order.curve, order.function)
        except KeyError as error:
            raise OrderRefused(str(error.args[0])) from error
        if order.may_raise(before[order.group]):
            self._watch.begin_anew()
