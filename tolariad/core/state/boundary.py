"""Boundary orders, and the wait at an epoch's end, as recorded in the journal: slice, apply table.

Invariants: an order is durable before it is sent, and ends exactly once. Waiting orders keep the order in which they
were accepted, whatever their kinds. The next trainer gets those without a durable answer. `acted` counts the orders
that the state of the current branch contains. At most one question is open; a rollback or the end of the trainer closes
it. No generation is used twice, so a late answer is recognised as void.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import Annotated, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.messages.vocabulary import kinds_of
from tolariad.core.state.fates import ACTS_ONCE, COUNTER, anew, survives
from tolariad.core.state.fold import ApplyTable

# The trainer remembers this many keys. It can get an order again only as long as the order waits here.
WAITING_MAX: Final = 64
_WORD: Final = 2**64 - 1

_Kind = TypeVar("_Kind", bound=m.BoundaryOrder)


class Waiting(msgspec.Struct, frozen=True):
    """An accepted order that has not ended. `by`, `reason`: who gave it, and why."""

    cause: m.Cause
    order: m.AnyBoundaryOrder
    by: str = ""
    reason: str = ""


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question after `epoch` that has no answer yet."""

    epoch: int
    generation: int


class Boundary(msgspec.Struct, frozen=True):
    """Slice of RunState. `waiting`: oldest first, at most WAITING_MAX.

    `acted`: how many orders acted on the current branch. `digest`: over all orders that ever acted, of every kind: what
    each does and before which step, without its cause. It is separate from the digest over steps and epochs: an order
    that waits at an epoch's end may act on either side of it. `asked`: the open question, for which training waits.
    `generations`: how many questions were asked.
    """

    waiting: Annotated[tuple[Waiting, ...], ACTS_ONCE] = ()
    acted: Annotated[int, survives("the trainer that stands at the target reports it (RatesRestored)")] = 0
    digest: Annotated[bytes, survives("it covers all orders that acted, on abandoned branches too")] = b""
    asked: Annotated[OpenQuestion | None, anew("the run leaves the epoch's end that the question was about")] = None
    generations: Annotated[int, COUNTER] = 0

    @property
    def next_generation(self) -> int:
        """Return the number of the next question."""
        return self.generations + 1

    def awaits(self, generation: int) -> bool:
        """Return whether an answer to this question is still wanted."""
        return self.asked is not None and self.asked.generation == generation

    def of_kind(self, kind: type[_Kind]) -> Iterator[tuple[m.Cause, _Kind]]:
        """Yield the waiting orders of one kind, with their causes, oldest first."""
        return ((one.cause, one.order) for one in self.waiting if isinstance(one.order, kind))

    def find(self, cause: int) -> Waiting | None:
        """Return the waiting order with this key, or None."""
        return next((one for one in self.waiting if one.cause.seq == cause), None)


class HasBoundary(Protocol):
    """A state with this slice."""

    @property
    def boundary(self) -> Boundary:
        """Return the boundary orders, and the wait at an epoch's end."""


def _given(s: Boundary, e: m.OrderGiven, at: m.Cause) -> Boundary:
    actor = e.actor or m.Actor()
    one = Waiting(at, e.order, actor.program, actor.reason)
    return replace(s, waiting=(*s.waiting, one)[-WAITING_MAX:])


def _without(s: Boundary, cause: int) -> tuple[Waiting, ...]:
    return tuple(one for one in s.waiting if one.cause.seq != cause)


def _acted(s: Boundary, e: m.OrderActed, _: m.Cause) -> Boundary:
    # Masked, since `apply` takes every event, even one with an impossible number.
    place = struct.pack("<QQ", e.number & _WORD, e.applied_before_step & _WORD)
    does = {name: getattr(e.order, name) for name in e.order.__struct_fields__ if name not in e.order.RECORD}
    what = msgspec.msgpack.encode((type(e.order).__name__, does), order="deterministic")
    digest = hashlib.sha256(s.digest + place + what).digest()
    return replace(s, waiting=_without(s, e.cause), acted=storable(e.number), digest=digest)


def _aborted(s: Boundary, e: m.OrderAborted, _: m.Cause) -> Boundary:
    return replace(s, waiting=_without(s, e.cause))


def _restored(s: Boundary, e: m.RatesRestored, _: m.Cause) -> Boundary:
    return replace(s, acted=storable(e.orders))


def _asked(s: Boundary, e: m.BoundaryAsked, _: m.Cause) -> Boundary:
    return replace(s, asked=OpenQuestion(e.epoch, e.generation), generations=storable(e.generation))


def _closed(s: Boundary, e: m.BoundaryClosed, _: m.Cause) -> Boundary:
    return replace(s, asked=None) if s.awaits(e.generation) else s


def _left(s: Boundary, _: m.Event, __: m.Cause) -> Boundary:
    """Close the question: a rollback leaves this epoch's end, or the waiting trainer is gone."""
    return s if s.asked is None else replace(s, asked=None)


APPLY: Final[ApplyTable] = {
    m.OrderGiven: _given,
    m.OrderActed: _acted,
    m.OrderAborted: _aborted,
    m.RatesRestored: _restored,
    **dict.fromkeys(kinds_of(m.BoundaryAsked), _asked),
    **dict.fromkeys(kinds_of(m.BoundaryClosed), _closed),
    **dict.fromkeys((m.RollbackBegun, m.TrainerDied, m.TrainerEnded), _left),
}
