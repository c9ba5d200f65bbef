"""The circuit breaker and conservative mode as functions of values.

Promises: every function is pure and total. Time is an argument, in seconds of a monotonic clock. A time before the one
that a value remembers comes from another boot; the wait then counts as over.
"""

from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.calc.settings import model

BreakerRule: TypeAlias = model.Breaker


class BreakerState(StrEnum):
    """Closed: calls pass. Open: calls are refused.

    Half-open: a few calls pass, and their results close or open it again.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(Struct, frozen=True):
    """A breaker's state. Its rule (`failures`, `reset_s`, `probes`) and the time are arguments of every function.

    `failures` in a row while closed; `opened`, when it opened (None: closed); `successes` since it became half-open.
    """

    failures: int = 0
    opened: float | None = None
    successes: int = 0


def breaker_state(breaker: Breaker, rule: BreakerRule, now: float) -> BreakerState:
    """Return the breaker's state at `now`.

    Half-open is never stored: an open breaker becomes half-open after `reset_s`.
    """
    if breaker.opened is None:
        return BreakerState.CLOSED
    return BreakerState.HALF_OPEN if is_over(breaker.opened, rule.reset_s, now) else BreakerState.OPEN


def failed(breaker: Breaker, rule: BreakerRule, now: float) -> Breaker:
    """Return the breaker after one failure. A half-open one opens again; an open one does not change."""
    match breaker_state(breaker, rule, now):
        case BreakerState.CLOSED:
            count = breaker.failures + 1
            return Breaker(failures=count, opened=now if count >= rule.failures else None)
        case BreakerState.HALF_OPEN:
            return Breaker(failures=breaker.failures + 1, opened=now)
        case BreakerState.OPEN:
            return breaker


def succeeded(breaker: Breaker, rule: BreakerRule, now: float) -> Breaker:
    """Return the breaker after one success.

    A closed one forgets its failures; a half-open one closes after enough of them. A success while it is open belongs
    to a call from before it opened, and changes nothing.
    """
    match breaker_state(breaker, rule, now):
        case BreakerState.CLOSED:
            return Breaker()
        case BreakerState.HALF_OPEN:
            count = breaker.successes + 1
            return Breaker() if count >= rule.probes else replace(breaker, successes=count)
        case BreakerState.OPEN:
            return breaker


def breaker_rule(settings: model.Settings, name: str) -> BreakerRule:
    """Return the rule of the breaker `name`: its entry under `breakers`, else the default (`lr` has its own)."""
    given = settings.breakers.get(name)
    if given is not None:
        return given
    if name == "lr":
        return BreakerRule(failures=settings.learning_rate.circuit_breaker_threshold)
    return BreakerRule()


def is_over(since: float, seconds: float, now: float) -> bool:
    """Return whether so many seconds have passed since then."""
    # Add, do not subtract: a caller that waits until `since + seconds` must not be told that it is too early by one
    # bit.
    return not since <= now < since + seconds


RATE_VIOLATIONS_MAX: Final = 3
SLOW_BOUNDARIES_MAX: Final = 3
HEALTHY_EPOCHS_TO_LEAVE: Final = 3
SECONDS_TO_LEAVE: Final = 300.0
# In the mode the limits of soft budgets of time are multiplied by this.
SOFT_FACTOR: Final = 2.0


def reason_for_conservative(
    *,
    open_breakers: tuple[str, ...] = (),
    rate_violations: int = 0,
    rate_violations_max: int = RATE_VIOLATIONS_MAX,
    slow_boundaries: int = 0,
) -> str | None:
    """Return the reason to be in conservative mode, or None.

    * `rate_violations`: the number of violations since the mode was last left.
    * `rate_violations_max`: the number at which the mode begins: the default, or the breaker's threshold if that is
      higher.
    * `slow_boundaries`: the number of boundaries in a row that exceeded their budget; 0 if overruns are only recorded
      (`budgets.act: false`).
    """
    if open_breakers:
        return f"open breaker: {', '.join(open_breakers)}"
    if rate_violations >= rate_violations_max:
        return f"{rate_violations} learning-rate violations"
    if slow_boundaries >= SLOW_BOUNDARIES_MAX:
        return f"{slow_boundaries} epoch boundaries in a row over their budget"
    return None


def may_leave_conservative(*, healthy_epochs: int, since: float, now: float) -> bool:
    """Return whether the mode may be left: 3 healthy epochs in a row and 5 minutes after it was entered at `since`.

    The caller first asks `reason_for_conservative` whether a reason still stands (such as an open breaker). Counts of
    past events restart with the mode.
    """
    return healthy_epochs >= HEALTHY_EPOCHS_TO_LEAVE and is_over(since, SECONDS_TO_LEAVE, now)
