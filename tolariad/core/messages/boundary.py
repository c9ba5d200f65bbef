"""Boundary orders of every kind, and the end of an epoch: the bases, and the common answer.

A boundary order changes what training computes, such as a learning rate. The daemon sends each with its *cause*, the
number of the event that ordered it. The trainer obeys them at a boundary, in the order in which they came, and answers
each once. Those that acted are numbered from 1 on the current branch. A kind is one BoundaryOrder, and perhaps an
Outcome, with a handler in the trainer. `core.messages.boundary_order` has the events of all kinds.

At the end of an epoch a component may be asked for orders before training goes on. It derives its events from
BoundaryAsked and BoundaryClosed.

Promises: a cause is a key. Causes do not rise in the order of sending, so nothing compares two of them.
"""

from typing import ClassVar, Self

from tolariad.core.calc.copying import Copying
from tolariad.core.calc.units import Epoch, Seq, Step
from tolariad.core.messages.base import Event, Report, TrainerEffect


class BoundaryOrder(TrainerEffect, frozen=True, kw_only=True):
    """Base of every kind. To the trainer: obey it at the next boundary. `cause` is the order's key.

    `ACCEPTS`: the names of the commands that are accepted by such an order. `RECORD`: the fields that change nothing of
    what it does.
    """

    ACCEPTS: ClassVar[tuple[str, ...]] = ()
    RECORD: ClassVar[tuple[str, ...]] = ("cause",)

    @property
    def accepted(self) -> str:
        """Return the name of the command that the order accepts, or ""."""
        return self.ACCEPTS[0] if self.ACCEPTS else ""

    @property
    def brief(self) -> Self:
        """Return the order without its long parts, of which no sentence speaks."""
        return self


class Outcome(Copying, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of what is recorded of an order that acts, besides the order itself."""


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
