"""The fields and types that all messages share: units, the actor, and the stamp of every event.

Promises: an event is one flat map on disk (`type`, `wall`, `mono`, `cause`, `root`, then its own fields). A field that
has its default is left out, so a field can be added later without changing a byte of older journals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

# Units are part of the type, so that the generated page can print them.
from tolariad.core.bounds import Batch, Bytes, Digest64, Epoch, Hex, Loss, Nanoseconds, Rate, Seconds, Seq, Step

__all__ = [
    "Actor",
    "ApplyTable",
    "Batch",
    "Bytes",
    "Cause",
    "Digest64",
    "Effect",
    "Epoch",
    "Event",
    "Hex",
    "Loss",
    "Message",
    "Nanoseconds",
    "Rate",
    "Seconds",
    "Seq",
    "Step",
    "storable",
]


class Actor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who ordered something: the peer of the socket, or one of our own programs with uid -1."""

    uid: int = -1
    pid: int = 0
    program: str = ""
    reason: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The stamp of an event. `decide` sets only `cause` and `root`; the kernel fills in the rest before the commit.

    `cause` is the sequence number of the event that led to this one (0: it came from outside). `root` is the first of
    that chain (its own number if it has no cause). `skippable` events never change RunState; an older reader may skip
    them. `ORDER` is the name of the order that the event accepts, or "" if it accepts none; such an event has a field
    `id`.
    """

    EMITTED_BY: ClassVar[str] = "kernel"
    ORDER: ClassVar[str] = ""
    SINCE: ClassVar[str] = "0.1"

    wall: Nanoseconds = 0
    mono: Nanoseconds = 0
    cause: Seq = 0
    root: Seq = 0
    actor: Actor | None = None
    skippable: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Commands, effects and reports: they cross a channel or a socket, and are never journaled themselves."""


class Effect(Message, frozen=True, kw_only=True):
    """An action to take once the events of its decision are durable. `cause` 0: the decision's first event."""

    cause: Seq = 0


class Cause(msgspec.Struct, frozen=True):
    """An event that later events name as their cause."""

    seq: Seq
    root: Seq


# The fold of one slice: event type -> function of (the slice, the event, the event's number and root) -> the slice.
ApplyTable = dict[type[Event], Callable[[Any, Any, Cause], Any]]


def storable(number: int) -> int:
    """Return the nearest number that a capture can hold: `apply` takes every event, even an impossible one."""
    return max(-(2**63), min(number, 2**64 - 1))
