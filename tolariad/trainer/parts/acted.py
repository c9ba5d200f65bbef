"""How many boundary orders the state contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class ActedPart(Part):
    """The count. The keys of the newest orders are beside the state (`ActedOrders`)."""

    name = "orders"

    def __init__(self, setup: Setup) -> None:
        self._acted = setup.acted

    def state(self) -> State:
        return State({"orders": self._acted.count})

    def load(self, held: Restoring) -> None:
        self._acted.restored(held.entry("orders"), held.loaded.acted)
