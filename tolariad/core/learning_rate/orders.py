"""Which orders of a rate a group accepts, and the reason for each refusal.

Promises: a pure function of the group, the step at which the order would act, and the cap.
"""

from __future__ import annotations

import math
from typing import Final

from tolariad.core.learning_rate.group import Group, rate_of
from tolariad.core.learning_rate.schedule import LRPolicy

MAX_ORDER_FACTOR: Final = 10.0
# 0.0007 x 10 is slightly below 0.007, and a user who types that means tenfold.
_ROUNDING: Final = 1.0 + 1e-9


def refusal(group: Group, step: int, value: float, policy: LRPolicy | None, max_factor: float) -> str | None:
    """Return why `value` (under `policy`, if given) may not be this group's rate from `step` on, or None if it may.

    `max_factor`: the factor by which one order may change a rate; 0: unlimited. A group whose rate is 0 is compared
    with its base.
    """
    if not math.isfinite(value) or value < 0.0:
        return f"a learning rate is a number from 0 on, not {value}"
    if policy is LRPolicy.FROZEN:
        return None if value == 0.0 else f"a frozen group has rate 0, not {value:g}"
    if policy is None and group.policy is LRPolicy.FROZEN:
        return f"{group.name} is frozen; --policy says what it follows from now on"
    if value == 0.0 and max_factor > 0.0:
        return "rate 0 stops the group: --policy frozen says so"
    most = group.schedule.max_lr
    if most is not None and value > most:
        return f"{value:g} is above max_lr {most:g}"
    return _too_far(group, step, value, max_factor)


def _too_far(group: Group, step: int, value: float, max_factor: float) -> str | None:
    if max_factor <= 0.0:
        return None
    now = rate_of(group, step) or group.schedule.base_lr
    low, high = now / max_factor, now * max_factor
    if low <= value * _ROUNDING and value <= high * _ROUNDING:
        return None
    return (
        f"one order moves a rate at most {max_factor:g}-fold, here to {low:g} up to {high:g}, not to {value:g} "
        "(learning_rate.max_order_factor; 0 lifts it)"
    )
