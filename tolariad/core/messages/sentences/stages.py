"""The sentences for announced stages."""

from __future__ import annotations

from typing import Any, Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, by


def _given(e: m.OrderGiven) -> str:
    order: Any = e.order
    return f"A stage is to begin at the next step{because(order.why)} It was announced{by(e)}"


def _began(e: m.OrderActed) -> str:
    order: Any = e.order
    whose = f", announced by {e.by}" if e.by else ""
    return f"A stage begins at step {e.applied_before_step}{whose}{because(order.why)}"


ORDERS: Final[OrderSentences] = {m.BeginStage: OrderWords(given=_given, acted=_began)}
