"""The giver of an order in a sentence, and the forms of a concern's sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because

# A template, or a function of the event: see tolariad.core.messages.sentences.text.
Words: TypeAlias = str | Callable[[Any], str]
# The sentences of a concern, by event type.
Sentences: TypeAlias = Mapping[type[m.Event], Words]


class OrderWords(NamedTuple):
    """The sentences for a kind of boundary order that is given, acts, or never acted."""

    given: Words = lambda e: f"The order {type(e.order).__name__} was given{by(e)}"
    acted: Words = lambda e: f"The order {type(e.order).__name__} acts from step {e.applied_before_step} on."
    aborted: Words = lambda e: f"The order {type(e.order).__name__} never acted{because(e.why)}"


# The sentences of a concern's boundary orders, by kind.
OrderSentences: TypeAlias = Mapping[type[m.BoundaryOrder], OrderWords]


def by(e: m.Event) -> str:
    """Return the giver of the order, the reason for it, and the end of the sentence."""
    return "." if e.actor is None else f" by {who(e)}{because(e.actor.reason)}"


def who(e: m.Event) -> str:
    """Return the giver of an order: the user, or one of our own programs."""
    actor = e.actor
    if actor is None or actor.uid < 0:
        return (actor.program if actor is not None else "") or "tolariad"
    return f"uid {actor.uid}"
