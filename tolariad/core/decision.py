"""What a decision is: events to record, effects that follow once they are durable, an answer for whoever asked.

It must not know: any rule.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tolariad.core.inputs import Now
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


def stamped(decision: Decision, after_seq: Seq, now: Now) -> Decision:
    """The same decision with everything that only its place in the journal tells: the kernel's sixth invariant.

    Its events take the numbers after `after_seq`. Causes, roots and the answer's number are filled in where they point
    at the decision's own first event.
    """
    if not decision.events:
        return decision
    first_seq = after_seq + 1
    first = decision.events[0]
    first_root = first.root or first_seq
    stamped_first = replace(first, wall=now.wall, mono=now.mono, root=first_root)
    if len(decision.events) == 1 and not decision.effects and decision.answer is None:
        # A step, as nearly always.
        return Decision((stamped_first,))
    events = [stamped_first]
    events.extend(
        replace(event, wall=now.wall, mono=now.mono, cause=event.cause or first_seq, root=event.root or first_root)
        for event in decision.events[1:]
    )
    effects = tuple(effect if effect.cause else replace(effect, cause=first_seq) for effect in decision.effects)
    answer = Accepted(first_seq) if decision.answer == Accepted(0) else decision.answer
    return Decision(tuple(events), effects, answer)
