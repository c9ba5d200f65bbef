"""What a decision is: events to record, effects that follow once they are durable, an answer for whoever asked.

It must not know: any rule.
"""

from __future__ import annotations

import msgspec

from tolariad.core.vocabulary import Effect, Event
from tolariad.core.vocabulary.base import Seq


class Accepted(msgspec.Struct, frozen=True):
    """The order is recorded under `seq`; 0 stands for the first event of this decision until the kernel numbers it."""

    seq: Seq = 0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The order changes nothing. `error` is the control interface's name for it (interface section 5)."""

    error: str
    why: str
    phase: str = ""


Answer = Accepted | Refusal


class Decision(msgspec.Struct, frozen=True):
    """Events in the order they are recorded.

    An event after the first that names no cause was caused by the first; an effect that names none, too.
    """

    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    answer: Answer | None = None

    def __add__(self, other: Decision) -> Decision:
        """One decision after the other; the first answer stands."""
        return Decision(self.events + other.events, self.effects + other.effects, self.answer or other.answer)


NOTHING = Decision()
