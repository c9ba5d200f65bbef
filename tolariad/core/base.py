"""The fields and types that all messages share: units, the actor, and the stamp of every event.

Promises: an event is one flat map on disk (`type`, `wall`, `mono`, `cause`, `root`, then its own fields). A field that
has its default is left out, so a field can be added later without changing a byte of older journals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from tolariad.core.bounds import (
    COUNT_MAX,
    EPOCH_MAX,
    ID_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    NOTE_CHARACTERS_MAX,
    SECONDS_MAX,
    unit,
)

# Units are part of the type, so that the generated page can print them.
Nanoseconds = Annotated[int, unit("nanoseconds", -(2**63), 2**63 - 1)]
Seconds = Annotated[float, unit("seconds", 0.0, SECONDS_MAX)]
Bytes = Annotated[int, unit("bytes", 0, COUNT_MAX)]
Seq = Annotated[int, unit("sequence number", 0, COUNT_MAX)]
Step = Annotated[int, unit("applied optimizer updates, 0 is before any", 0, COUNT_MAX)]
Epoch = Annotated[int, unit("epoch, from 1", 0, EPOCH_MAX)]
Batch = Annotated[int, unit("batches of the epoch already consumed", 0, COUNT_MAX)]
Digest64 = Annotated[int, unit("64-bit digest", 0, 2**64 - 1)]
Digest32 = Annotated[int, unit("32-bit digest", 0, 2**32 - 1)]
Hex = Annotated[str, unit("lower-case hexadecimal", 0, 1 << 23)]
# Measured values: one that is not finite is information, and is recorded as it is.
Rate = Annotated[float, unit("learning rate")]
Loss = Annotated[float, unit("task unit, may be non-finite")]
# The value of an order.
OrderedRate = Annotated[float, unit("learning rate", 0.0, 1e6)]
Name = Annotated[str, unit("", 0, NAME_CHARACTERS_MAX)]
Sentence = Annotated[str, unit("", 0, NOTE_CHARACTERS_MAX)]
CallerId = Annotated[str, unit("", 0, ID_CHARACTERS_MAX)]


class Actor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The giver of an order: the peer of the socket, or one of our own programs with uid -1."""

    uid: int = -1
    pid: int = 0
    program: str = ""
    reason: str = ""


@cache
def _shared(kind: type[msgspec.Struct], source: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that both have."""
    return tuple(name for name in kind.__struct_fields__ if name in source.__struct_fields__)


class Copying(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the Structs that can be made from others with fields of the same names."""

    @classmethod
    def of(cls, *sources: msgspec.Struct, **more: Any) -> Self:
        """Return the Struct with the values of `sources` in fields of the same names, and `more`; the last one wins.

        Raises TypeError if a field without a default is in none of them.
        """
        values = {name: getattr(source, name) for source in sources for name in _shared(cls, type(source))}
        return cls(**{**values, **more})


class Event(Copying, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The stamp of an event. `decide` sets only `cause` and `root`; the kernel fills in the rest before the commit.

    `cause` is the sequence number of the event that led to this one (0: it came from outside). `root` is the first of
    that chain (its own number if it has no cause). `skippable` events never change RunState; an older reader may skip
    them. `ORDER` is the name of the order that the event accepts, or "" if it accepts none; such an event has a field
    `id`. A type that accepts several orders says which by `accepts` and `accepted`.
    """

    ORDER: ClassVar[str] = ""
    # A type whose events may be skipped has a field of this name. It is no field of every event. msgpack writes the
    # head of a map of more than 15 possible fields in another way, and a step has its metrics as the 15th.
    skippable: ClassVar[bool] = False

    wall: Nanoseconds = 0
    mono: Nanoseconds = 0
    cause: Seq = 0
    root: Seq = 0
    actor: Actor | None = None

    @classmethod
    def accepts(cls) -> tuple[str, ...]:
        """Return the names of the orders that an event of this type accepts."""
        return (cls.ORDER,) if cls.ORDER else ()

    @property
    def accepted(self) -> str:
        """Return the name of the order that the event accepts, or ""."""
        return self.ORDER

    def caused_by(self, at: Cause | None) -> Self:
        """Return the event with this cause; None: the event that its rule reacts to."""
        return self if at is None else replace(self, cause=at.seq, root=at.root)


class Refusal(msgspec.Struct, frozen=True):
    """The order changes nothing. `error` is its name in the control interface (interface section 5).

    The rule of an order leaves out `phase`, the run's phase.
    """

    error: str
    why: str
    phase: str = ""


class Message(Copying, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Commands, effects and reports: they cross a channel or a socket, and are never journaled themselves."""


class Report(Message, frozen=True, kw_only=True):
    """A message of the trainer to the kernel."""


class Effect(Message, frozen=True, kw_only=True):
    """An action to take once the events of its decision are durable. `cause` 0: the decision's first event."""

    cause: Seq = 0


class TrainerEffect(Effect, frozen=True, kw_only=True):
    """An effect that the kernel sends to the trainer."""


class DaemonEffect(Effect, frozen=True, kw_only=True):
    """An effect that the daemon's loop carries out."""


class Cause(msgspec.Struct, frozen=True):
    """An event that later events name as their cause."""

    seq: Seq
    root: Seq


# The fold of one event into a slice: a function of (the slice, the event, the event's number and root) -> the slice.
Fold: TypeAlias = Callable[[Any, Any, Cause], Any]
# The fold of one slice, by event type.
ApplyTable = dict[type[Event], Fold]


def setting(**fields: Any) -> Fold:
    """Return a fold that sets these fields of the slice, whatever the event holds."""
    return lambda before, _, __: replace(before, **fields)


def storable(number: int) -> int:
    """Return the nearest number that a capture can hold: `apply` takes every event, even an impossible one."""
    return max(-(2**63), min(number, 2**64 - 1))
