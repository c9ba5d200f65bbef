"""Learning rates: orders on their way to the optimizer, plateaus, violations, audits; rebuilds of optimizers.

Scheduled changes are no events: every step's report contains the rates that it used.
"""

from typing import ClassVar, Final

import msgspec

from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.core.calc.learning_rate.tabulated import Tabulated
from tolariad.core.calc.units import Epoch, Loss, Name, OrderedRate, Rate, Step
from tolariad.core.messages.base import Event, Report
from tolariad.core.messages.boundary import BoundaryOrder, Outcome
from tolariad.core.messages.control import Command


class LrSet(Command, frozen=True, kw_only=True):
    """Make `value` the rate of `group` from the next step on; the rest of its curve scales with it.

    `policy` puts another curve in place: constant holds the value, frozen (with 0) stops the group. `function` puts the
    table of a function in place, which the caller has evaluated for every step of the group's curve; no code runs here.
    One order changes a rate at most by the factor learning_rate.max_order_factor.
    """

    ONE_OF: ClassVar[tuple[str, ...]] = ("policy", "function")

    group: Name
    value: OrderedRate
    policy: LRPolicy | None = None
    function: Tabulated | None = None


class SetRate(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: make `value` the rate of `group`. `policy` replaces its curve, by `function` if that is a table.

    `curve`: the rate of the group's curve at the step at which the order acts; `value` over it scales the rest of the
    curve. Otherwise the trainer computes it.
    """

    ACCEPTS: ClassVar[tuple[str, ...]] = ("LrSet",)

    group: str
    value: Rate
    policy: LRPolicy | None = None
    curve: Rate | None = None
    function: Tabulated | None = None

    def may_raise(self, before: float) -> bool:
        """Return whether the rate may be higher from now on. A lower one is no reason for a higher loss."""
        return self.policy is not None or self.function is not None or self.value > before


class RateSet(Outcome, frozen=True, kw_only=True):
    """Of SetRate. `before`: the rate of the update before it (for the first one: that it would have had)."""

    before: Rate = 0.0


class LrGroupsRegistered(Event, frozen=True, kw_only=True):
    """The groups whose rates are controlled, in the order of a step's digest.

    Recorded if they differ from the known ones.
    """

    groups: tuple[Group, ...]


class LrGroupsChanged(Event, frozen=True, kw_only=True):
    """Groups were added or removed during training.

    From update `applied_before_step` on they are these, with orders and plateaus.
    """

    applied_before_step: Step
    groups: tuple[Group, ...]


class PlateauReached(Event, frozen=True, kw_only=True):
    """A metric stopped improving, so an adaptive group's rate is lowered.

    Update `applied_before_step` is the first one at `rate`. `before`: the rate of the update before it.
    """

    group: str
    epoch: Epoch
    applied_before_step: Step
    metric: str
    before: Rate
    rate: Rate


class PlateauUnjudged(Event, frozen=True, kw_only=True):
    """An epoch ended without any of val_loss, host_loss and loss, so the rates of adaptive groups do not change.

    Recorded once, and again only after an epoch that had one.
    """

    epoch: Epoch
    groups: tuple[str, ...]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a trainer that has restored a checkpoint, in its reports; fields as in RatesRestored."""

    groups: tuple[Group, ...]
    orders: int = 0
    losses: int = 0
    loss_sum: Loss = 0.0


class UndoneRate(msgspec.Struct, frozen=True):
    """A rate that somebody had ordered after a rollback's target: of which group, from which step on."""

    group: str
    rate: float
    step: Step


class RatesRestored(Event, frozen=True, kw_only=True):
    """A rollback restored the rates of its target. Orders and plateaus from after it no longer act.

    `orders`: how many boundary orders had acted there; the next one to act gets the next number. `losses`, `loss_sum`:
    the steps of the target's epoch before it, and the sum of their losses, by which its plateaus are judged. `undone`:
    the newest ordered rates that do not act any more, one a group.
    """

    groups: tuple[Group, ...]
    orders: int = 0
    losses: int = 0
    loss_sum: Loss = 0.0
    undone: tuple[UndoneRate, ...] = ()


# The reason in the kernel's own violation events.
DIGEST_DIFFERS: Final = "the digest over the rates this step used is not that of the rates the journal leads to"
# The beginning of the reason if the user's code stepped one of torch's LR schedulers; its class follows.
SCHEDULER_STEPPED: Final = "a torch LR scheduler was stepped"


class LrViolationDetected(Event, frozen=True, kw_only=True):
    """Code other than the rate controller changed a rate, or the parameters that it applies to.

    Update `step` did not use it. `found` is absent if there is no number. `where` is a line of code, if it is known.
    `count` is how many violations of the same kind this event stands for. An empty `group`: none of the registered
    ones.
    """

    step: Step
    group: str
    what: str
    expected: Rate | None = None
    found: Rate | None = None
    where: str = ""
    count: int = 1


class AuditDiffered(Event, frozen=True, kw_only=True):
    """The audit of one parameter shows that its update differs from the one that the recorded rate gives."""

    step: Step
    parameter: str
    what: str


class RatesStandingReport(Report, frozen=True, kw_only=True):
    """Training began before a rollback's target and has repeated everything up to it. These are the rates there."""

    rates: Standing


# -- optimizers that are rebuilt during a run: prepared separately, then committed or aborted --------------------------


class RebuildCounts(msgspec.Struct, frozen=True):
    """Numbers of parameters by what happened to their state.

    `carried`: taken over bit for bit. `transformed`: adapted to a new shape. `reset`: begun again. `added`, `dropped`:
    new or removed parameters. `forgotten`: entries of the state that were left out because their kind is not known.
    """

    carried: int = 0
    transformed: int = 0
    reset: int = 0
    added: int = 0
    dropped: int = 0
    forgotten: int = 0


class OptimizerRebuildPrepared(Event, frozen=True, kw_only=True):
    """The rebuild of an optimizer was prepared and checked. It ends in exactly one of Committed and Aborted."""

    optimizer: str
    counts: RebuildCounts


class OptimizerRebuildCommitted(Event, frozen=True, kw_only=True):
    """The rebuilt optimizer replaced the old one. `elapsed_ms`: how long the rebuild took."""

    optimizer: str
    counts: RebuildCounts
    elapsed_ms: float


class OptimizerRebuildAborted(Event, frozen=True, kw_only=True):
    """The rebuild was given up. Optimizer, model and rates are unchanged."""

    optimizer: str
    why: str
    counts: RebuildCounts = RebuildCounts()


class RebuildReport(Report, frozen=True, kw_only=True):
    """A rebuild of the run's own optimizer, as its event."""

    told: OptimizerRebuildPrepared | OptimizerRebuildCommitted | OptimizerRebuildAborted
