"""What the detector has learnt of losses and gradient norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.core import messages as m
from tolariad.trainer.orders.numbered import Kind
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.parts.part import Orders, Trained
    from tolariad.trainer.setup import Setup


class DetectorPart(Part):
    """The monitor's detector."""

    name = "detector"

    def __init__(self, setup: Setup) -> None:
        self._watch = setup.watch

    def state(self) -> State:
        return State({"detector": self._watch.state()})

    def load(self, held: Restoring) -> None:
        self._watch.load_state(held.entry("detector"))

    def orders(self, trained: Trained) -> Orders:
        return {
            m.LearnAnew: Kind(lambda _: self._watch.begin_anew()),
            m.RememberLoud: Kind(lambda order: self._watch.remember(order.loud)),
        }
