"""Boundary orders of every kind: each is given to the part that obeys its kind, counted and answered.

Promises: an order acts once, in this trainer and in those that restore its checkpoints. The orders of a script act at
their places, before any that waits. The answer to an order is reported before any checkpoint that contains it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import state as st

if TYPE_CHECKING:
    from tolariad.trainer.orders.gate import Link


class ActedOrders:
    """The boundary orders that the live state contains: kept with every checkpoint and snapshot, and restored with it.

    `count` is the number of these orders. It is a part of the state, and a script's orders are numbered by it.

    The keys are event numbers of this journal. Two equal states may differ in them, so they are stored outside the
    state: in the manifest, or in the table of a snapshot's slot. Only the newest WAITING_MAX keys are kept. These are
    enough: the daemon sends an order again only while it does not know that the order has ended, and such orders are
    the newest.
    """

    def __init__(self) -> None:
        self.count = 0
        # A dict for its order: the oldest key is forgotten first.
        self._causes: dict[int, None] = {}

    def __contains__(self, cause: int) -> bool:
        """Return whether the order with this key was answered."""
        return cause in self._causes

    def add(self, cause: int) -> None:
        """Note that the order with this key acts from now on."""
        self.count += 1
        self.remember(cause)

    def add_own(self) -> None:
        """Note that an order acts which nobody gave: the trainer itself made it, and reports it."""
        self.count += 1

    def remember(self, cause: int) -> None:
        """Note that the order with this key was answered. A refused order does not act later either."""
        self._causes[cause] = None
        if len(self._causes) > st.WAITING_MAX:
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


def _nothing() -> None:
    """Nothing follows the answer."""


class OrderRefused(Exception):
    """A boundary order cannot act. The text says why, for the person or program that gave it; nothing was changed."""


class Kind(NamedTuple):
    """How one kind of order is carried out.

    `obey` carries out a new order, or raises OrderRefused. It may return the fields in which the answer of its kind
    exceeds the common one, as a report with any cause and step. `repeat` carries out one of a script, which acted
    before; None: `obey` does that too. `after` is called when a new order was answered.
    """

    obey: Callable[[Any], m.BoundaryOrderReport | None]
    repeat: Callable[[Any], object] | None = None
    after: Callable[[], None] = _nothing


class BoundaryOrders:
    """The trainer's numbered list. `acted` belongs to the state that is trained."""

    def __init__(
        self, acted: ActedOrders, link: Link, took: Callable[[float, float], None] = lambda _, __: None
    ) -> None:
        """`took` is called with the seconds that each order took, and with those in which this thread ran."""
        self._acted, self._took = acted, took
        self._inbox, self._reporter, self._progress = link.inbox, link.reporter, link.progress
        self._kinds: dict[type, Kind] = {}

    def obey_by(self, kinds: Mapping[type[m.AnyBoundaryOrder], Kind]) -> None:
        """Carry out orders of these kinds so. Raises ValueError if one of them is carried out already."""
        for kind, how in kinds.items():
            self._inbox.register(kind, self._obey)
            self._kinds[kind] = how

    def _obey(self, order: m.BoundaryOrder) -> None:
        """Carry out an order from the next update on, and answer it. A repeated order has no effect."""
        # The daemon sends an order again to a trainer that may lack it. If this state contains it, it was answered
        # before the checkpoint was reported, and reports keep their order: so the journal has the answer already.
        if order.cause in self._acted:
            return
        kind, before_step = self._kinds[type(order)], self._progress.step + 1
        answer = m.BoundaryOrderReport(order=order.cause, applied_before_step=before_step)
        begun, ran = time.perf_counter(), time.thread_time()
        try:
            found = kind.obey(order)
        except OrderRefused as error:
            # Not counted: a script holds only orders that acted, and its numbers are these counts.
            answer = replace(answer, refused=str(error))
            self._acted.remember(order.cause)
        else:
            self._acted.add(order.cause)
            if found is not None:
                answer = replace(found, order=order.cause, applied_before_step=before_step)
        self._took(time.perf_counter() - begun, time.thread_time() - ran)
        # Invariant: the answer is sent before this returns to the boundary, where the next capture can begin. A
        # committed checkpoint therefore never contains an order whose end the journal lacks.
        self._reporter.report(answer)
        # After the answer: it reports consequences, such as new groups, of an order that has acted.
        kind.after()

    def repeat(self, orders: Iterable[m.ScriptOrder]) -> None:
        """Carry out the orders of a script that acted at this place, except those that the checkpoint contains."""
        for one in orders:
            # By number, not by cause: the oldest causes are forgotten, the count never is.
            if one.number > self._acted.count:
                # No answer: the journal has it. The key is noted in case the daemon sends the order again.
                kind = self._kinds[type(one.order)]
                (kind.repeat or kind.obey)(one.order)
                self._acted.add(one.order.cause)
