"""The giver of an order in a sentence, and the form of a concern's sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because

# The sentences of a concern, by event type: see tolariad.core.messages.sentences.text.
Sentences: TypeAlias = Mapping[type[m.Event], str | Callable[[Any], str]]


def by(e: m.Event) -> str:
    """Return the giver of the order, the reason for it, and the end of the sentence."""
    return "." if e.actor is None else f" by {who(e)}{because(e.actor.reason)}"


def who(e: m.Event) -> str:
    """Return the giver of an order: the user, or one of our own programs."""
    actor = e.actor
    if actor is None or actor.uid < 0:
        return (actor.program if actor is not None else "") or "tolariad"
    return f"uid {actor.uid}"
