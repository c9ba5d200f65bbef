"""The circuit breaker, conservative mode and the table of budgets, under the name that outside programs import."""

from tolariad.core.calc.health.breaker import (
    Breaker,
    BreakerRule,
    BreakerState,
    breaker_rule,
    breaker_state,
    failed,
    is_over,
    may_leave_conservative,
    reason_for_conservative,
    succeeded,
)
from tolariad.core.calc.health.budgets import BUDGETS, Budget

__all__ = [
    "BUDGETS",
    "Breaker",
    "BreakerRule",
    "BreakerState",
    "Budget",
    "breaker_rule",
    "breaker_state",
    "failed",
    "is_over",
    "may_leave_conservative",
    "reason_for_conservative",
    "succeeded",
]
