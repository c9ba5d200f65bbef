"""The sentences for the strategy's questions, answers, commands and votes."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because, counted, size
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, Sentences

_VOTES: Final = {
    m.Vote.AGREED: "agreed to rollback {e.rollback}",
    m.Vote.REFUSED: "refused rollback {e.rollback} to {e.checkpoint}",
    m.Vote.ABSTAINED: "abstained in rollback {e.rollback}",
}


def _answered(e: m.StrategyAnswered) -> str:
    commands = counted(len(e.commands), "command") if e.commands else "no command"
    again = f" {counted(len(e.repeated), 'command')} had come before and {_was(e.repeated)} left out."
    took = f"in {1e3 * e.spans.answer:.3g} ms"
    return f"The strategy answered after epoch {e.epoch} {took}: {commands}.{again if e.repeated else ''}"


def _was(names: tuple[str, ...]) -> str:
    return "was" if len(names) == 1 else "were"


def _timed_out(e: m.StrategyTimedOut) -> str:
    if e.reason is m.NoAnswer.OVERTAKEN:
        return f"The question to the strategy after epoch {e.epoch} was closed{because(e.fallback)}"
    return f"The strategy gave no answer after epoch {e.epoch}, and nothing is changed{because(e.fallback)}"


def _voided(e: m.StrategyAnswerVoided) -> str:
    commands = f", with {counted(e.commands, 'command')}" if e.commands else ""
    return f"An answer of the strategy came too late and is void: question {e.generation}{commands}."


def _voted(e: m.StrategyVoted) -> str:
    return f"The strategy {_VOTES[e.vote].format(e=e)}{because(e.why)}"


ORDERS: Final[OrderSentences] = {
    m.KeepStrategyState: OrderWords(
        given=lambda e: f"The strategy has a new state after epoch {e.order.epoch}: {size(len(e.order.state))}.",
        acted="Checkpoints contain the strategy's state after epoch {e.order.epoch}.",
        aborted="The strategy goes back to its former state{why}",
    )
}
SENTENCES: Final[Sentences] = {
    m.StrategyAsked: "The strategy is asked after epoch {e.epoch}.",
    m.StrategyAnswered: _answered,
    m.StrategyTimedOut: _timed_out,
    m.StrategyAnswerVoided: _voided,
    m.StrategyCommanded: "Command {e.number} of the strategy is {e.kind}.",
    m.BreakerSet: "The breaker {e.breaker} was set to {e.state.value}{by}",
    m.StrategyVoted: _voted,
}
