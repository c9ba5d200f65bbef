"""The rows of health in the table of reactions: findings, emergencies, budgets, violated rates."""

from __future__ import annotations

from typing import Final

from tolariad.core.engine import Row, on
from tolariad.core.health import budget_rules, detection_rules, emergency_rules, quarantine_rules
from tolariad.core.health import budget_words as bv
from tolariad.core.health import quarantine_words as qv
from tolariad.core.health import words as hv
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import window_rules
from tolariad.core.rates import words as lv
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as rv
from tolariad.core.state import RunState

# What may follow an emergency.
EMERGENCY: Final = (hv.ConservativeModeEntered, rb.RollbackBegun, rv.RunFrozen)

HEALTH: Final[tuple[Row[RunState], ...]] = (
    # The answer comes last: a waiting trainer goes on only if nothing else follows.
    on(
        hv.InstabilityDetected,
        detection_rules.raise_emergency,
        detection_rules.answer,
        makes=(hv.EmergencyRaised, hv.ConservativeModeEntered),
    ),
    on(
        hv.EmergencyRaised,
        emergency_rules.after_severe,
        window_rules.blame,
        quarantine_rules.add_suspects,
        emergency_rules.carry_out,
        makes=(*EMERGENCY, mk.MaskSetRejected, qv.QuarantineAdded, rb.RollbackRequested),
    ),
    on(
        bv.BudgetsMeasured,
        budget_rules.exceeded_often,
        budget_rules.judge_memory,
        makes=(bv.BudgetExceeded, bv.MemoryPressed, bv.MemoryRelieved),
    ),
    on(bv.MemoryPressed, budget_rules.tell_pressure),
    on(bv.MemoryRelieved, budget_rules.tell_pressure),
    on(lv.OptimizerRebuildCommitted, budget_rules.exceeded, makes=(bv.BudgetExceeded,)),
    on(bv.BudgetExceeded, budget_rules.enter_conservative, makes=(hv.ConservativeModeEntered,)),
    on(lv.LrViolationDetected, emergency_rules.after_violation, makes=(hv.ConservativeModeEntered,)),
)
