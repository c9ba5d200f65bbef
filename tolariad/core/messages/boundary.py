"""Boundary orders of every kind, and the end of an epoch: the bases of their events, and the common answer.

A boundary order changes what training computes: today a learning rate. The daemon sends each with its *cause*, the
number of the event that ordered it. The trainer obeys them at a boundary, in the order in which they came, and answers
each once. Those that acted are numbered from 1 on the current branch. A kind is one BoundaryOrder, its events derived
from those here, a handler in the trainer, and a rule that answers BoundaryOrderReport. `core.messages.boundary_order`
lists the kinds. An order is made from its event, by the fields that both have.

At the end of an epoch a component may be asked for orders before training goes on. It derives its events from
BoundaryAsked and BoundaryClosed.

Promises: a cause is a key. Causes do not rise in the order of sending, so nothing compares two of them.
"""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.calc.units import Epoch, Seq, Step
from tolariad.core.messages.base import Event, Report, TrainerEffect


class BoundaryOrder(TrainerEffect, frozen=True, kw_only=True):
    """Base of every kind. To the trainer: obey it at the next boundary. `cause` is the order's key."""


class BoundaryOrderGiven(Event, frozen=True, kw_only=True):
    """Base of the events that accept an order. One BoundaryOrderActed or BoundaryOrderAborted of its cause ends it."""

    KIND: ClassVar[type[BoundaryOrder]]

    @property
    def order(self) -> BoundaryOrder:
        """Return the order for the trainer, without its cause."""
        return self.KIND.of(self, cause=0)


class BoundaryOrderActed(Event, frozen=True, kw_only=True):
    """Base of the events that an order acts; `cause` is its key.

    Update `applied_before_step` is the first one that it affects. `number` counts the orders of all kinds that acted,
    from 1.
    """

    KIND: ClassVar[type[BoundaryOrder]]

    applied_before_step: Step
    number: int

    @property
    def order(self) -> BoundaryOrder:
        """Return the order that a re-run must obey at this place for the same result, with its cause."""
        return self.KIND.of(self)


class BoundaryOrderAborted(Event, frozen=True, kw_only=True):
    """Base of the events that an order never acted; `cause` is its key."""


class BoundaryOrderReport(Report, frozen=True, kw_only=True):
    """The answer to the boundary order with this cause.

    It acts from update `applied_before_step` on. If `refused` is not empty, it does not act, for that reason.
    """

    order: Seq
    applied_before_step: Step
    refused: str = ""


class BoundaryAsked(Event, frozen=True, kw_only=True):
    """Base of the events that ask for orders after `epoch`. Training waits for the BoundaryClosed of the generation."""

    epoch: Epoch
    generation: int


class BoundaryClosed(Event, frozen=True, kw_only=True):
    """Base of the events that end such a wait: the answer of this `generation` came, or is no longer awaited."""

    generation: int
