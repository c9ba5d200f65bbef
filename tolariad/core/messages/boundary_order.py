"""Every kind of boundary order, as one tagged union, and the three events that an order may become."""

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, Union

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.calc.units import CallerId, Step
from tolariad.core.messages import boundary, insurance, pruning_mask, rates, rates_hyper, seeds, stages, strategy
from tolariad.core.messages.base import Event
from tolariad.core.messages.boundary import BoundaryOrder, Outcome

_S = TypeVar("_S", bound=Struct)
_O = TypeVar("_O", bound=Outcome)


def _kinds(base: type[_S]) -> tuple[type[_S], ...]:
    """Return the types derived from `base` that the concerns define."""
    found = (
        one
        for module in (rates, rates_hyper, seeds, strategy, pruning_mask, stages, insurance)
        for one in vars(module).values()
    )
    return tuple(dict.fromkeys(one for one in found if isinstance(one, type) and issubclass(one, base) and one != base))


BOUNDARY_ORDERS: Final = _kinds(BoundaryOrder)
if TYPE_CHECKING:
    AnyBoundaryOrder: TypeAlias = boundary.BoundaryOrder
    AnyOutcome: TypeAlias = boundary.Outcome
else:
    # For the codec each is the union of its types.
    AnyBoundaryOrder = Union[BOUNDARY_ORDERS]  # noqa: UP007 - from a list
    AnyOutcome = Union[_kinds(Outcome)]  # noqa: UP007 - from a list


class OrderGiven(Event, frozen=True, kw_only=True):
    """A boundary order was accepted. It ends in exactly one of OrderActed and OrderAborted, whose cause this event is.

    `id`: the id of the accepted command, if the caller gave one. `why`: the reason of an order of the run itself.
    """

    NAMES: ClassVar[tuple[str, ...]] = tuple(name for kind in BOUNDARY_ORDERS for name in kind.ACCEPTS)

    order: AnyBoundaryOrder
    id: CallerId = ""
    why: str = ""

    @classmethod
    def accepts(cls) -> tuple[str, ...]:
        """Return the names of the orders that an event of this type accepts."""
        return cls.NAMES

    @property
    def accepted(self) -> str:
        """Return the name of the order that the event accepts, or ""."""
        return self.order.accepted


class OrderActed(Event, frozen=True, kw_only=True):
    """An order acts; `cause` is its key. Update `applied_before_step` is the first one that it affects.

    `order` is what a re-run must obey at this place for the same result. `number` counts the orders of all kinds that
    acted, from 1. `outcome`: what else is recorded of this kind. `by`, `reason`: who gave it, and why.
    """

    order: AnyBoundaryOrder
    applied_before_step: Step
    number: int
    outcome: AnyOutcome | None = None
    by: str = ""
    reason: str = ""

    @property
    def to_repeat(self) -> BoundaryOrder:
        """Return the order with its key, for a re-run."""
        return replace(self.order, cause=self.cause)

    def outcome_as(self, kind: type[_O]) -> _O:
        """Return the outcome, which is of this kind; if an impossible event has another one, its defaults."""
        return self.outcome if isinstance(self.outcome, kind) else kind()


class OrderAborted(Event, frozen=True, kw_only=True):
    """An order never acted: nothing was changed. `cause` is its key."""

    order: AnyBoundaryOrder
    why: str


class Acts(NamedTuple):
    """What a concern says of an order that acts: as a re-run must obey it, and what else is recorded."""

    order: BoundaryOrder
    outcome: Outcome | None = None
