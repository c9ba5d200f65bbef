"""Conservative mode, as functions of values: the reasons to enter it, when it may be left, and what it holds back.

Promises: every function is pure and total; time is an argument.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tolariad.core.health.breakers import is_over

RATE_VIOLATIONS_MAX: Final = 3
SLOW_BOUNDARIES_MAX: Final = 3
HEALTHY_EPOCHS_TO_LEAVE: Final = 3
SECONDS_TO_LEAVE: Final = 300.0


class Strain(Struct, frozen=True, kw_only=True):
    """The reasons for conservative mode: open breakers, rate violations, slow boundaries, a severe emergency.

    `rate_violations`: since the mode was last left. `rate_violations_max`: how many are too many; at least the default,
    or the breaker's threshold if that is higher. `slow_boundaries`: how many in a row exceeded their budget; 0 if
    overruns are only recorded (`budgets.act: false`).
    """

    open_breakers: tuple[str, ...] = ()
    rate_violations: int = 0
    rate_violations_max: int = RATE_VIOLATIONS_MAX
    slow_boundaries: int = 0
    severe: bool = False


def reason_for_conservative(strain: Strain) -> str | None:
    """Return the reason to be in conservative mode, or None."""
    if strain.severe:
        return "an emergency of level SEVERE"
    if strain.open_breakers:
        return f"open breaker: {', '.join(strain.open_breakers)}"
    if strain.rate_violations >= strain.rate_violations_max:
        return f"{strain.rate_violations} learning-rate violations"
    if strain.slow_boundaries >= SLOW_BOUNDARIES_MAX:
        return f"{strain.slow_boundaries} epoch boundaries in a row over their budget"
    return None


def may_leave_conservative(*, healthy_epochs: int, since: float, now: float) -> bool:
    """Return whether the mode may be left: 3 healthy epochs in a row and 5 minutes after it was entered at `since`.

    The caller first asks `reason_for_conservative` whether a reason still stands (an open breaker, SEVERE). Counts of
    past events restart with the mode.
    """
    return healthy_epochs >= HEALTHY_EPOCHS_TO_LEAVE and is_over(since, SECONDS_TO_LEAVE, now)


class Restraint(Struct, frozen=True, kw_only=True):
    """Everything that conservative mode changes: never a weight, a rate or the order of data.

    `starts`: whether a germination, blending or pruning may start (one that runs continues). `prunes`: whether pruning
    may; a full disk also forbids it. Soft timeouts and the checkpoint interval are multiplied.
    """

    starts: bool = True
    soft_timeouts: float = 1.0
    checkpoint_interval: float = 1.0
    prunes: bool = True


UNRESTRAINED: Final = Restraint()
CONSERVATIVE: Final = Restraint(starts=False, soft_timeouts=2.0, checkpoint_interval=0.5, prunes=False)
# The checkpoints that must stay exceed their quota: pruning would need more checkpoints that cannot be removed either.
EXHAUSTED: Final = Restraint(prunes=False)
