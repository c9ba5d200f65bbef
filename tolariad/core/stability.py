"""The rules of stability for programs outside: breakers, conservative mode, and the table of budgets."""

from __future__ import annotations

from tolariad.core.health.breakers import (
    Breaker,
    BreakerRule,
    BreakerState,
    breaker_rule,
    breaker_state,
    failed,
    succeeded,
)
from tolariad.core.health.budgets import BUDGETS, Budget
from tolariad.core.health.restraint import (
    CONSERVATIVE,
    EXHAUSTED,
    UNRESTRAINED,
    Restraint,
    Strain,
    may_leave_conservative,
    reason_for_conservative,
)

__all__ = [
    "BUDGETS",
    "Budget",
    "Breaker",
    "BreakerRule",
    "BreakerState",
    "breaker_rule",
    "breaker_state",
    "failed",
    "succeeded",
    "Strain",
    "reason_for_conservative",
    "may_leave_conservative",
    "Restraint",
    "UNRESTRAINED",
    "CONSERVATIVE",
    "EXHAUSTED",
]
