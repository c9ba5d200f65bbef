"""The strategy (Tamiyo): it reads the state of a run after an epoch and answers with commands.

It runs outside the trainer, and never touches a tensor. Promises: the default policy is a pure function of its state
and the packet, with a bounded number of commands. Nothing here imports torch. docs/strategy.md says how to write one.
"""

from tolariad.strategy.answer import ANSWER_BYTES_MAX, COMMANDS_MAX, AnswerRefused, answer_of, read_commands
from tolariad.strategy.default import DefaultStrategy
from tolariad.strategy.finding import FoundStrategy, StrategyRefused, find_strategy
from tolariad.strategy.growing import STAGE_AFTER
from tolariad.strategy.interface import Strategy
from tolariad.strategy.memory import PolicyLimits, PolicyState
from tolariad.strategy.policy import decide
from tolariad.strategy.state import STATE_BYTES_MAX, StateRefused, read_state, write_state

__all__ = [
    "ANSWER_BYTES_MAX",
    "COMMANDS_MAX",
    "STAGE_AFTER",
    "STATE_BYTES_MAX",
    "AnswerRefused",
    "DefaultStrategy",
    "FoundStrategy",
    "PolicyLimits",
    "PolicyState",
    "StateRefused",
    "Strategy",
    "StrategyRefused",
    "answer_of",
    "decide",
    "find_strategy",
    "read_commands",
    "read_state",
    "write_state",
]
