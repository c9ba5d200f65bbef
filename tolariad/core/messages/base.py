"""The fields and types that all messages share: the actor, and the stamp of every event.

Promises: an event is one flat map on disk (`type`, `wall`, `mono`, `cause`, `root`, then its own fields). A field that
has its default is left out, so a field can be added later without changing a byte of older journals.
"""

from typing import ClassVar, Self

import msgspec
from msgspec.structs import replace

from tolariad.core.calc.copying import Copying
from tolariad.core.calc.units import Nanoseconds, Seq


class Actor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The giver of an order: the peer of the socket, or one of our own programs with uid -1."""

    uid: int = -1
    pid: int = 0
    program: str = ""
    reason: str = ""


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

    def caused_by(self, at: "Cause | None") -> Self:
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
