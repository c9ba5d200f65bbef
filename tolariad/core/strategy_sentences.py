"""The sentences for the strategy's questions, answers, commands and votes; `core.sentences` has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tolariad.core.base import Event
from tolariad.core.phrases import because, by, counted, listed, size
from tolariad.core.rates import hyper_words as hp
from tolariad.core.strategy import words as st

_HOST: Final = ("", hp.HOST)
_VOTES: Final = {
    st.Vote.AGREED: "agreed to rollback {e.rollback}",
    st.Vote.REFUSED: "refused rollback {e.rollback} to {e.checkpoint}",
    st.Vote.ABSTAINED: "abstained in rollback {e.rollback}",
}


def _answered(e: st.StrategyAnswered) -> str:
    commands = counted(len(e.commands), "command") if e.commands else "no command"
    again = f" {counted(len(e.repeated), 'command')} had come before and {_was(e.repeated)} left out."
    took = f"in {1e3 * e.spans.answer:.3g} ms"
    return f"The strategy answered after epoch {e.epoch} {took}: {commands}.{again if e.repeated else ''}"


def _was(names: tuple[str, ...]) -> str:
    return "was" if len(names) == 1 else "were"


def _timed_out(e: st.StrategyTimedOut) -> str:
    if e.reason is st.NoAnswer.OVERTAKEN:
        return f"The question to the strategy after epoch {e.epoch} was closed{because(e.fallback)}"
    return f"The strategy gave no answer after epoch {e.epoch}, and nothing is changed{because(e.fallback)}"


def _voided(e: st.StrategyAnswerVoided) -> str:
    commands = f", with {counted(e.commands, 'command')}" if e.commands else ""
    return f"An answer of the strategy came too late and is void: question {e.generation}{commands}."


def _values(values: dict[str, float]) -> str:
    return listed(f"{name} {value:.6g}" for name, value in sorted(values.items()))


def _of(optimizer: str) -> str:
    return "the host's optimizer" if optimizer in _HOST else f"optimizer {optimizer}"


def _ordered(e: hp.HyperparametersOrdered) -> str:
    return f"Hyper-parameters of {_of(e.optimizer)} were ordered ({_values(e.values)}){by(e)}"


def _changed(e: hp.HyperparametersChanged) -> str:
    return f"From step {e.applied_before_step} on, {_of(e.optimizer)} has {_values(e.values) or 'the same values'}."


def _voted(e: st.StrategyVoted) -> str:
    return f"The strategy {_VOTES[e.vote].format(e=e)}{because(e.why)}"


STRATEGY: Final[dict[type[Event], str | Callable[[Any], str]]] = {
    hp.HyperparametersOrdered: _ordered,
    hp.HyperparametersChanged: _changed,
    hp.HyperparametersAborted: lambda e: f"No hyper-parameter of {_of(e.optimizer)} was set{because(e.why)}",
    st.StrategyAsked: "The strategy is asked after epoch {e.epoch}.",
    st.StrategyAnswered: _answered,
    st.StrategyTimedOut: _timed_out,
    st.StrategyAnswerVoided: _voided,
    st.StrategyCommanded: "Command {e.number} of the strategy is {e.kind}.",
    st.StrategyStateGiven: lambda e: f"The strategy has a new state after epoch {e.epoch}: {size(len(e.state))}.",
    st.StrategyStateKept: "Checkpoints contain the strategy's state after epoch {e.epoch}.",
    st.StrategyStateDropped: "The strategy goes back to its former state{why}",
    st.BreakerSet: "The breaker {e.breaker} was set to {e.state.value}{by}",
    st.StrategyVoted: _voted,
}
