"""The rows of the table for the events of a rollback, from its order to its end."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.engine import Row, on
from tolariad.core.rules import (
    boundary,
    budget,
    checkpoints,
    insurance,
    pruning,
    pruning_window,
    rollback,
    seeds,
    strategy,
)
from tolariad.core.state.run_state import RunState

ROLLBACK: Final[tuple[Row[RunState], ...]] = (
    on(m.RollbackRequested, rollback.begin_ordered, makes=(m.RollbackBegun, m.RollbackAborted)),
    on(
        m.RollbackBegun,
        strategy.overtaken,
        pruning.cancel,
        insurance.abort_comparison,
        checkpoints.beyond_target,
        rollback.prepare,
        strategy.ask_vote,
        rollback.without_trainer,
        boundary.go_on_closed,
        makes=(m.StrategyTimedOut, m.PruneCycleCancelled, m.ComparisonAborted, m.RolledBack, m.RunPaused),
    ),
    on(m.RollbackEscalated, checkpoints.beyond_target, rollback.prepare, strategy.ask_vote),
    on(m.RollbackHeard, budget.exceeded, makes=(m.BudgetExceeded,)),
    on(m.RollbackPrepared, budget.exceeded, makes=(m.BudgetExceeded,)),
    on(
        m.RolledBack,
        *(strategy.overtaken, budget.exceeded, seeds.follow),
        *(pruning.leave, pruning_window.release_left, pruning_window.compact_due, insurance.after_rollback),
        makes=(m.StrategyTimedOut, m.BudgetExceeded, m.OrderGiven, m.OrderAborted, m.ComparisonBegun, m.PinReleased),
    ),
)
