"""What a decision is: events to record, effects that follow once they are durable, an answer for whoever asked.

It must not know: any rule.
"""

from __future__ import annotations

import msgspec

from tolariad.core.base import Seq
from tolariad.core.vocabulary import Effect, Event


class Accepted(msgspec.Struct, frozen=True):
    """The order is recorded under `seq`. A rule leaves 0 for the first event of its decision; the engine numbers it."""

    seq: Seq = 0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The order changes nothing. `error` is the control interface's name for it (interface section 5)."""

    error: str
    why: str
    phase: str = ""


Answer = Accepted | Refusal


class Decision(msgspec.Struct, frozen=True):
    """What one rule wants: events in the order they are recorded, effects, and an answer.

    An event that names no cause was caused by the one that the rule reacts to; an effect that names none, by the first event
    beside it, else by the one reacted to.
    """

    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    answer: Answer | None = None

    def __add__(self, other: Decision) -> Decision:
        """One decision after the other; the first answer stands."""
        return Decision(self.events + other.events, self.effects + other.effects, self.answer or other.answer)
