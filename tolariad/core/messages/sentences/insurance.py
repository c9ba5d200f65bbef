"""The sentences for what the autopilot does."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement, Losses
from tolariad.core.calc.text.phrases import because
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, Sentences

_JUDGED: Final = {
    Judgement.WEIGHTS: "The weights were damaged.",
    Judgement.DATA: "The batches of the rise do damage.",
    Judgement.CHANGED: "The objective or the data changed.",
    Judgement.UNCLEAR: "That is unclear.",
}


def _pinned(e: m.StatePinned) -> str:
    written = "" if e.is_written else ", which is being written"
    return f"State of step {e.step} ({e.checkpoint}{written}) is kept as a way back{because(e.why)}"


def _losses(what: str, losses: Losses | None) -> str:
    return f" {what} {losses.now:.4g}, there {losses.pinned:.4g}." if losses is not None else ""


def _compared(e: m.StatesCompared) -> str:
    measured = f"{_losses('Newest batches: loss', e.newest)}{_losses('Held out:', e.held)}"
    if e.went_on is None:
        said = f" {_JUDGED[e.judgement]}" if e.judgement is not None else ""
    else:
        said = " Going back was no better." if e.went_on else " Going back was better."
    return f"Step {e.step} against {e.checkpoint}.{measured}{said}"


def _held_on_to(e: m.HeldOnTo) -> str:
    if not e.checkpoint:
        return f"The run goes on{because(e.why)}"
    back = f"While the run trains, `tolaria rollback RUN --to {e.checkpoint}` goes back there."
    return f"State of step {e.step} ({e.checkpoint}) stays kept{because(e.why)} {back}"


SENTENCES: Final[Sentences] = {
    m.StatePinned: _pinned,
    m.PinReleased: "The way back to {e.checkpoint} is no longer kept{why}",
    m.ComparisonBegun: "The run is compared with {e.checkpoint} after batch {e.batch} of epoch {e.epoch}{why}",
    m.StatesCompared: _compared,
    m.ComparisonAborted: "The comparison with {e.checkpoint} was given up{why}",
    m.HeldOnTo: _held_on_to,
}

ORDERS: Final[OrderSentences] = {
    m.LearnAnew: OrderWords(
        given="The detector is to learn the level of the loss anew{why}",
        acted=lambda e: f"The detector learns the level of the loss anew from step {e.applied_before_step} on.",
        aborted="The detector does not learn anew{why}",
    ),
    m.RememberLoud: OrderWords(
        given="The detector is to remember how loud single batches are{why}",
        acted=lambda e: f"The detector remembers how loud single batches are, from step {e.applied_before_step} on.",
        aborted="The detector does not remember loud batches{why}",
    ),
}
