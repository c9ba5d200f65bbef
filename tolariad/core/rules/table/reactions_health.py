"""The rows of health in the table of reactions: findings, emergencies, budgets, violated rates."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.engine import Row, on
from tolariad.core.rules import budget, emergency, health_detection, insurance, pruning_window, quarantine
from tolariad.core.state.run_state import RunState

# What may follow an emergency.
EMERGENCY: Final = (m.ConservativeModeEntered, m.RollbackBegun, m.RunFrozen)

HEALTH: Final[tuple[Row[RunState], ...]] = (
    # The answer comes last: a waiting trainer goes on only if nothing else follows.
    on(
        m.InstabilityDetected,
        health_detection.raise_emergency,
        insurance.after_finding,
        health_detection.answer,
        makes=(
            m.EmergencyRaised,
            m.ConservativeModeEntered,
            m.CheckpointBegun,
            m.StatePinned,
            m.PinReleased,
            m.ComparisonBegun,
            m.HeldOnTo,
        ),
    ),
    on(
        m.EmergencyRaised,
        emergency.after_severe,
        pruning_window.blame,
        quarantine.add_suspects,
        emergency.carry_out,
        makes=(*EMERGENCY, m.MaskSetRejected, m.QuarantineAdded, m.RollbackRequested),
    ),
    on(
        m.BudgetsMeasured,
        budget.exceeded_often,
        budget.judge_memory,
        makes=(m.BudgetExceeded, m.MemoryPressed, m.MemoryRelieved),
    ),
    on(m.MemoryPressed, budget.tell_pressure),
    on(m.MemoryRelieved, budget.tell_pressure),
    on(m.OptimizerRebuildCommitted, budget.exceeded, makes=(m.BudgetExceeded,)),
    on(m.BudgetExceeded, budget.enter_conservative, makes=(m.ConservativeModeEntered,)),
    on(m.LrViolationDetected, emergency.after_violation, makes=(m.ConservativeModeEntered,)),
)
