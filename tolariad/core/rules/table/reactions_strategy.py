"""The rows of the strategy in the table of reactions: its answers, commands, orders and votes.

The rules that ask it are in the rows of what they follow from, in `core.rules.table.reactions`.
"""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.engine import Row, on
from tolariad.core.rules import boundary, budget, checkpoints, control, emergency, health_detection, rollback, strategy
from tolariad.core.rules.table.orders import ADAPTATIONS
from tolariad.core.state.run_state import RunState

STRATEGY: Final[tuple[Row[RunState], ...]] = (
    # -- the strategy --------------------------------------------------------------------------------------------------
    on(
        m.StrategyReply,
        strategy.answered,
        makes=(m.OrderGiven, m.StrategyAnswered, m.StrategyTimedOut, m.StrategyAnswerVoided),
    ),
    on(m.StrategyOverdue, strategy.overdue, makes=(m.StrategyTimedOut,)),
    on(m.VoteGiven, strategy.voted, makes=(m.StrategyVoted,)),
    # The order to continue comes last, after every order of the answer.
    on(
        m.StrategyAnswered,
        budget.exceeded,
        strategy.command,
        boundary.go_on_closed,
        makes=(m.BudgetExceeded, m.StrategyCommanded),
    ),
    on(
        m.StrategyTimedOut,
        budget.exceeded,
        emergency.after_open_breaker,
        boundary.go_on_closed,
        makes=(m.BudgetExceeded, m.ConservativeModeEntered),
    ),
    on(
        m.StrategyCommanded,
        strategy.obey(control.received(ADAPTATIONS)),
        makes=(
            m.CommandRefused,
            m.PauseRequested,
            m.OrderGiven,
            m.RollbackRequested,
            m.EmergencyRaised,
            m.BreakerSet,
        ),
    ),
    on(m.BreakerSet, emergency.after_open_breaker, makes=(m.ConservativeModeEntered,)),
    # A refusal has the consequences of the trainer's.
    on(
        m.StrategyVoted,
        rollback.voted,
        health_detection.after_refusal,
        emergency.after_refusal,
        checkpoints.instead_of_refused,
        makes=(
            m.RollbackEscalated,
            m.RollbackAborted,
            m.ConservativeModeEntered,
            m.RollbackBegun,
            m.RunFrozen,
            m.CheckpointBegun,
        ),
    ),
)
