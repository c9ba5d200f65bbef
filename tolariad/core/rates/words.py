"""Learning rates: orders on their way to the optimizer, plateaus, violations, audits.

Scheduled movement is not an event: every step's report carries the rates it used. It must not know: optimizers, tensors.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from tolariad.core.base import Epoch, Event, Loss, Message, Rate, Step
from tolariad.core.boundary.words import BoundaryOrder, BoundaryOrderAborted, BoundaryOrderActed, BoundaryOrderGiven
from tolariad.core.bounds import Name, OrderedRate
from tolariad.core.control.words import Command
from tolariad.core.learning_rate import Group, LRPolicy


class LrSet(Command, frozen=True, kw_only=True):
    """Make `value` the rate of `group` from the next step on; the rest of its curve scales with it.

    `policy` puts another curve in place: constant holds the value, frozen (with 0) stops the group. One order moves a rate at
    most learning_rate.max_order_factor-fold.
    """

    group: Name
    value: OrderedRate
    policy: LRPolicy | None = None


class LrGroupsRegistered(Event, frozen=True, kw_only=True):
    """The groups whose rates are controlled, in the order of a step's digest; recorded where they are not those known."""

    EMITTED_BY: ClassVar[str] = "trainer"

    groups: tuple[Group, ...]


class LrGroupsChanged(Event, frozen=True, kw_only=True):
    """Groups came or went while training: from update `applied_before_step` on they are these, with orders and plateaus."""

    EMITTED_BY: ClassVar[str] = "trainer"

    applied_before_step: Step
    groups: tuple[Group, ...]


class RateOrdered(BoundaryOrderGiven, frozen=True, kw_only=True):
    """A rate was ordered; it ends in exactly one of RateChanged and RateOrderAborted."""

    EMITTED_BY: ClassVar[str] = "control"
    ORDER: ClassVar[str] = "LrSet"

    group: str
    value: Rate
    policy: LRPolicy | None = None
    id: str = ""

    @property
    def order(self) -> SetRate:
        """Return what is sent to the trainer, without its cause."""
        return SetRate(group=self.group, value=self.value, policy=self.policy)


class RateChanged(BoundaryOrderActed, frozen=True, kw_only=True):
    """An order acts: update `applied_before_step` is the first one at `rate`.

    `curve` is the rate that the group's curve has there, by which the rest of it scales; `before` is the rate of the update
    before it (before the first: what that would have had). `number` counts the boundary orders that acted, from 1.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    group: str
    applied_before_step: Step
    before: Rate
    rate: Rate
    curve: Rate
    number: int
    policy: LRPolicy | None = None

    @property
    def order(self) -> SetRate:
        """Return what a re-run must do to get the same rates, with its cause."""
        return SetRate(group=self.group, value=self.rate, policy=self.policy, curve=self.curve, cause=self.cause)


class RateOrderAborted(BoundaryOrderAborted, frozen=True, kw_only=True):
    """An ordered rate never acted."""

    group: str
    why: str


class PlateauReached(Event, frozen=True, kw_only=True):
    """A metric stopped to fall: an adaptive group's rate goes down, update `applied_before_step` is the first at `rate`.

    `before` is the rate of the update before it.
    """

    group: str
    epoch: Epoch
    applied_before_step: Step
    metric: str
    before: Rate
    rate: Rate


class PlateauUnjudged(Event, frozen=True, kw_only=True):
    """An epoch ended without any of val_loss, host_loss and loss: the rates of adaptive groups hold.

    Told once, and again only behind an epoch that had one.
    """

    epoch: Epoch
    groups: tuple[str, ...]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rates of a trainer that has restored a checkpoint stand, in its reports; as in RatesRestored."""

    groups: tuple[Group, ...]
    orders: int = 0
    losses: int = 0
    loss_sum: Loss = 0.0


class RatesRestored(Event, frozen=True, kw_only=True):
    """A rollback brought back the rates' state of its target: orders and plateaus behind it act no more.

    `orders`: how many boundary orders had acted there; the next one to act has the next number. `losses`, `loss_sum`: the steps of the
    target's epoch before it, and the sum of their losses, from which its plateaus are judged.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    groups: tuple[Group, ...]
    orders: int = 0
    losses: int = 0
    loss_sum: Loss = 0.0


# What the kernel's own check says of an update whose rates are not those that it knows.
DIGEST_DIFFERS: Final = "the digest over the rates this step used is not that of the rates the journal leads to"


class LrViolationDetected(Event, frozen=True, kw_only=True):
    """Somebody else than the rate controller changed a rate, or what it acts on; update `step` did not see it.

    `found` is absent where there is no number; `where` is a line of code, where it can be had; `count` is how many of
    the same kind this one stands for. A `group` of the empty text: none of the registered ones.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    step: Step
    group: str
    what: str
    expected: Rate | None = None
    found: Rate | None = None
    where: str = ""
    count: int = 1


class AuditDiffered(Event, frozen=True, kw_only=True):
    """The audit of one parameter shows what no hook can see: it did not move as its recorded rate says."""

    EMITTED_BY: ClassVar[str] = "trainer"

    step: Step
    parameter: str
    what: str


class SetRate(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: make `value` the rate of `group`; `policy` puts another curve in place.

    `curve`: in a re-run, the recorded rate of the group's curve by which the rest of it scales. Without it the trainer
    computes that.
    """

    group: str
    value: Rate
    policy: LRPolicy | None = None
    curve: Rate | None = None


class RatesStandingReport(Message, frozen=True, kw_only=True):
    """A start lay before a rollback's target; everything up to there was repeated, and the rates stand so."""

    rates: Standing


class RateGroupsReport(Message, frozen=True, kw_only=True):
    """As in LrGroupsChanged."""

    applied_before_step: Step
    groups: tuple[Group, ...]


class RateViolationReport(Message, frozen=True, kw_only=True):
    """A foreign change was found and put right before update `step`."""

    step: Step
    group: str
    what: str
    expected: Rate | None = None
    found: Rate | None = None
    where: str = ""
    count: int = 1


class AuditReport(Message, frozen=True, kw_only=True):
    """The sampled parameter did not come out as the recorded rate says."""

    step: Step
    parameter: str
    what: str


EVENTS = (
    LrGroupsRegistered,
    LrGroupsChanged,
    RateOrdered,
    RateChanged,
    RateOrderAborted,
    PlateauReached,
    PlateauUnjudged,
    RatesRestored,
    LrViolationDetected,
    AuditDiffered,
)
