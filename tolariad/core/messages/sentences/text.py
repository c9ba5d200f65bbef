"""Describe an event in one plain sentence: one table, with an entry for each type of event.

The console, `tolaria events`, `tolaria why`, `tolaria status` and the library's log use it. Each concern has its own
entries in a file of this folder. An entry is a function or a template of `str.format`. `{e}` is the event, and `{why}`
its reason and the end of the sentence. `{by}` is the giver of the order, the reason for it, and the end of the
sentence.

Promises: pure. A sentence can be understood without the events around it. It contains no digest and no name of a field.
It may contain any text that an event contains, so it must be escaped before a terminal shows it.
"""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because
from tolariad.core.messages.sentences import (
    architecture,
    checkpoints,
    control,
    health,
    insurance,
    pruning,
    rates,
    rollback,
    run,
    seeds,
    snapshots,
    stages,
    steps,
    strategy,
    trainer,
)
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, Sentences, Words, by

# The sentences for boundary orders, by kind; another kind has general ones.
ORDER_SENTENCES: Final[OrderSentences] = {
    **rates.ORDERS,
    **seeds.ORDERS,
    **strategy.ORDERS,
    **pruning.ORDERS,
    **insurance.ORDERS,
    **stages.ORDERS,
}


def _words(event: m.OrderGiven | m.OrderActed | m.OrderAborted) -> OrderWords:
    return ORDER_SENTENCES.get(type(event.order), OrderWords())


# docs/events.md describes the types.
SENTENCES: Final[Sentences] = {
    **run.SENTENCES,
    **trainer.SENTENCES,
    **steps.SENTENCES,
    **checkpoints.SENTENCES,
    **control.SENTENCES,
    **rates.SENTENCES,
    **architecture.SENTENCES,
    **seeds.SENTENCES,
    **health.SENTENCES,
    **rollback.SENTENCES,
    **snapshots.SENTENCES,
    **strategy.SENTENCES,
    **pruning.SENTENCES,
    **insurance.SENTENCES,
    m.OrderGiven: lambda e: _said(_words(e).given, e),
    m.OrderActed: lambda e: _said(_words(e).acted, e),
    m.OrderAborted: lambda e: _said(_words(e).aborted, e),
}


def sentence(event: m.Event) -> str:
    """Return the event in words."""
    return _said(SENTENCES[type(event)], event)


def _said(say: Words, event: m.Event) -> str:
    if not isinstance(say, str):
        return say(event)
    return say.format(e=event, why=because(getattr(event, "why", "")), by=by(event))
