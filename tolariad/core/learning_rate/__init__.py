"""Learning rates: closed-form functions of the step, lr = f(group, step), in Python floats.

Promises: the rate of step n is the same if the run reached n without a stop, resumed before it, or is only being read
about.
"""

from __future__ import annotations

from tolariad.core.learning_rate.group import (
    Group,
    Scale,
    after_epoch,
    carried_over,
    coming,
    curve_of,
    metric_of,
    ordered,
    rate_of,
    rates_at,
    with_order,
)
from tolariad.core.learning_rate.orders import MAX_ORDER_FACTOR, refusal
from tolariad.core.learning_rate.plateau import Plateau
from tolariad.core.learning_rate.rates import rate, rates_digest
from tolariad.core.learning_rate.schedule import (
    GroupConfig,
    LRPolicy,
    PlateauRule,
    Schedule,
    Warmup,
    policy_named,
    schedule_of,
    shortened_warmup,
)
from tolariad.core.learning_rate.values import LRIntegrityError, LRSnapshot

__all__ = [
    "MAX_ORDER_FACTOR",
    "Group",
    "GroupConfig",
    "LRIntegrityError",
    "LRPolicy",
    "LRSnapshot",
    "Plateau",
    "PlateauRule",
    "Scale",
    "Schedule",
    "Warmup",
    "after_epoch",
    "coming",
    "carried_over",
    "curve_of",
    "metric_of",
    "ordered",
    "policy_named",
    "rate",
    "rate_of",
    "rates_at",
    "rates_digest",
    "refusal",
    "schedule_of",
    "shortened_warmup",
    "with_order",
]
