"""Which boundary orders the live state contains: kept with every checkpoint and snapshot, and restored with it.

The count is a part of the state. The keys are numbers of this journal, in which two equal states may differ, so they lie in the
manifest, or in the table of a snapshot's slot. Promises: a cause is a key. The newest WAITING_MAX keys are kept, which are enough: the daemon sends an order again only while
it waits there, and the orders that it does not know to have ended are the newest that were answered here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tolariad.core.boundary.slice import WAITING_MAX


class ActedOrders:
    """`count`: how many boundary orders this state contains, on the living line; a script's orders are numbered like this."""

    def __init__(self) -> None:
        self.count = 0
        # A dict for its order: the oldest key is forgotten first.
        self._causes: dict[int, None] = {}

    def __contains__(self, cause: int) -> bool:
        """Return whether the order with this key was answered."""
        return cause in self._causes

    def add(self, cause: int) -> None:
        """The order with this key acts from now on."""
        self.count += 1
        self.remember(cause)

    def remember(self, cause: int) -> None:
        """The order with this key was answered; one that was refused does not act later either."""
        self._causes[cause] = None
        if len(self._causes) > WAITING_MAX:
            del self._causes[next(iter(self._causes))]

    @property
    def causes(self) -> tuple[int, ...]:
        """The keys of the newest orders that were answered, oldest first."""
        return tuple(self._causes)

    def restored(self, count: int, causes: Iterable[int]) -> None:
        """Continue from a saved state."""
        self.count, self._causes = count, dict.fromkeys(causes)


def count_in_rates(rates: dict[str, Any] | None) -> int:
    """Take the count out of the rates of a checkpoint that is older than this module: they held it then."""
    return int(rates.pop("orders", 0)) if rates else 0
