"""Boundary orders of every kind, and the end of an epoch: the bases of their events, and the answer that all kinds share.

A boundary order changes what training computes: a learning rate today. The daemon sends each with its *cause*, the number of
the event that ordered it. The trainer acts on them at a boundary, in the order in which they came, and answers each once.
Those that acted are numbered from 1 on the living line. A kind is one BoundaryOrder, its events derived from those here, a
handler in the trainer, and a rule that answers BoundaryOrderReport; `core.boundary.order_words` lists the kinds.

At the end of an epoch somebody may be asked for orders before training goes on. Whoever asks derives its events from
BoundaryAsked and BoundaryClosed.

Promises: a cause is a key. Causes of orders do not rise in the order of sending, so nothing compares two of them.
"""

from __future__ import annotations

from abc import abstractmethod

from tolariad.core.base import Effect, Epoch, Event, Message, Seq, Step


class BoundaryOrder(Effect, frozen=True, kw_only=True):
    """Base of every kind: to the trainer, act at the next boundary. `cause` is the order's key."""


class BoundaryOrderGiven(Event, frozen=True, kw_only=True):
    """Base of the events that accept an order; it ends in one BoundaryOrderActed or BoundaryOrderAborted of its cause."""

    @property
    @abstractmethod
    def order(self) -> BoundaryOrder:
        """Return what is sent to the trainer, without its cause."""


class BoundaryOrderActed(Event, frozen=True, kw_only=True):
    """Base of the events that say that an order acts; `cause` is its key.

    Update `applied_before_step` is the first one that sees it. `number` counts the orders of all kinds that acted, from 1.
    """

    applied_before_step: Step
    number: int

    @property
    @abstractmethod
    def order(self) -> BoundaryOrder:
        """Return what a re-run must do to get the same result at this place, with its cause."""


class BoundaryOrderAborted(Event, frozen=True, kw_only=True):
    """Base of the events that say that an order never acted; `cause` is its key."""


class BoundaryOrderReport(Message, frozen=True, kw_only=True):
    """The answer to the boundary order of this cause.

    It acts from update `applied_before_step` on; or it does not act, and `refused` says why.
    """

    order: Seq
    applied_before_step: Step
    refused: str = ""


class BoundaryAsked(Event, frozen=True, kw_only=True):
    """Base of the events that ask for orders after `epoch`; training waits for the BoundaryClosed of its `generation`."""

    epoch: Epoch
    generation: int


class BoundaryClosed(Event, frozen=True, kw_only=True):
    """Base of the events that end such a wait: the answer of this `generation` came, or was not awaited any longer."""

    generation: int
