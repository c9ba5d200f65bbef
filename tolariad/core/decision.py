"""A decision: events to record, effects to carry out after they are durable, and an answer to the caller."""

from __future__ import annotations

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.units import Seq


class Accepted(msgspec.Struct, frozen=True):
    """The order is recorded under `seq`.

    A rule leaves 0 for the first event of its decision; the engine sets the number.
    """

    seq: Seq = 0


Answer = Accepted | m.Refusal


class Decision(msgspec.Struct, frozen=True):
    """The result of one rule: events in the order they are recorded, effects, and an answer.

    If an event names no cause, its cause is the event that the rule reacts to. If an effect names none, its cause is
    the first event beside it, else the event that the rule reacts to.
    """

    events: tuple[m.Event, ...] = ()
    effects: tuple[m.Effect, ...] = ()
    answer: Answer | None = None

    def __add__(self, other: Decision) -> Decision:
        """Return one decision after the other. The first answer counts."""
        return Decision(self.events + other.events, self.effects + other.effects, self.answer or other.answer)
