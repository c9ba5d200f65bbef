"""Rules of stability: the circuit breaker and conservative mode, as functions of values, and the table of budgets.

Promises: every function is pure and total; time is an argument, in seconds of a clock that only rises. A time that lies
before the one a value remembers comes from another boot, and what was waited for counts as over.
It must not know: clocks, events, what a breaker protects.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.health.budgets import BUDGETS, Budget
from tolariad.core.settings.model import Breaker as BreakerRule

if TYPE_CHECKING:
    from tolariad.core.settings.model import Settings


class BreakerState(StrEnum):
    """Closed: go on. Open: what it protects is not tried. Half-open: a few tries decide which of the two comes next."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(Struct, frozen=True):
    """A breaker's memory; its rule (`failures`, `reset_s`, `probes`) and the time are arguments of every question.

    `failures` in a row while closed; `opened`, when it opened (None: closed); `successes` since it became half-open;
    `probes` admitted since then, the last of them at `probed`.
    """

    failures: int = 0
    opened: float | None = None
    successes: int = 0
    probes: int = 0
    probed: float = 0.0


def breaker_state(breaker: Breaker, rule: BreakerRule, now: float) -> BreakerState:
    """Where the breaker stands at `now`. Half-open is never stored: an open one becomes it by waiting."""
    if breaker.opened is None:
        return BreakerState.CLOSED
    return BreakerState.HALF_OPEN if _over(breaker.opened, rule.reset_s, now) else BreakerState.OPEN


def failed(breaker: Breaker, rule: BreakerRule, now: float) -> Breaker:
    """After one failure. One while half-open opens it anew; one while open came too late to say anything new."""
    match breaker_state(breaker, rule, now):
        case BreakerState.CLOSED:
            count = breaker.failures + 1
            return Breaker(failures=count, opened=now if count >= rule.failures else None)
        case BreakerState.HALF_OPEN:
            return Breaker(failures=breaker.failures + 1, opened=now)
        case BreakerState.OPEN:
            return breaker


def succeeded(breaker: Breaker, rule: BreakerRule, now: float) -> Breaker:
    """After one success: a closed breaker forgets its failures, a half-open one closes with enough of them.

    A success while it is open belongs to something begun before it opened, and closes nothing.
    """
    match breaker_state(breaker, rule, now):
        case BreakerState.CLOSED:
            return Breaker()
        case BreakerState.HALF_OPEN:
            count = breaker.successes + 1
            return Breaker() if count >= rule.probes else replace(breaker, successes=count)
        case BreakerState.OPEN:
            return breaker


def admitted(breaker: Breaker, rule: BreakerRule, now: float) -> Breaker | None:
    """The breaker after one try was let through, None where it is not.

    Half-open lets `rule.probes` through, and another one each time `reset_s` pass without a word of the last: a probe
    that died with its caller must not keep the breaker half-open for good.
    """
    state = breaker_state(breaker, rule, now)
    if state is BreakerState.CLOSED:
        return breaker
    if state is BreakerState.OPEN:
        return None
    if breaker.probes < rule.probes or _over(breaker.probed, rule.reset_s, now):
        return replace(breaker, probes=breaker.probes + 1, probed=now)
    return None


def breaker_rule(settings: Settings, name: str) -> BreakerRule:
    """The rule of the breaker `name`: its entry under `breakers`, else the default (`lr` has its own threshold)."""
    given = settings.breakers.get(name)
    if given is not None:
        return given
    if name == "lr":
        return BreakerRule(failures=settings.learning_rate.circuit_breaker_threshold)
    return BreakerRule()


def _over(since: float, seconds: float, now: float) -> bool:
    # The sum, not the difference: whoever waits until `since + seconds` is then never told that it was too early by a bit.
    return not since <= now < since + seconds


RATE_VIOLATIONS_MAX: Final = 3
SLOW_BOUNDARIES_MAX: Final = 3
HEALTHY_EPOCHS_TO_LEAVE: Final = 3
SECONDS_TO_LEAVE: Final = 300.0


class Strain(Struct, frozen=True, kw_only=True):
    """What speaks for conservative mode: names of open breakers, violations and slow boundaries, SEVERE or worse.

    `rate_violations` are those since the mode was last left. `rate_violations_max` of them are too many, which is the
    breaker's threshold if that is higher than the default. `slow_boundaries` those in a row over their budget, 0 where
    overruns are only recorded (`budgets.act: false`).
    """

    open_breakers: tuple[str, ...] = ()
    rate_violations: int = 0
    rate_violations_max: int = RATE_VIOLATIONS_MAX
    slow_boundaries: int = 0
    severe: bool = False


def reason_for_conservative(strain: Strain) -> str | None:
    """Why the run should be conservative now, None where nothing speaks for it."""
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
    """Long enough: 3 healthy epochs in a row and 5 minutes since it was entered at `since`.

    What led into it and still stands (an open breaker, SEVERE) is the caller's to ask for first, by
    `reason_for_conservative`; counts of past events start again with the mode.
    """
    return healthy_epochs >= HEALTHY_EPOCHS_TO_LEAVE and _over(since, SECONDS_TO_LEAVE, now)


class Restraint(Struct, frozen=True, kw_only=True):
    """What conservative mode changes, and all it changes: never a weight, a rate or the order of data.

    `starts`: whether a germination, blending or pruning may be started (what runs, runs on); `prunes`: whether pruning may,
    which disk that is taken up hinders too. Soft timeouts and the checkpoint interval are multiplied.
    """

    starts: bool = True
    soft_timeouts: float = 1.0
    checkpoint_interval: float = 1.0
    prunes: bool = True


UNRESTRAINED: Final = Restraint()
CONSERVATIVE: Final = Restraint(starts=False, soft_timeouts=2.0, checkpoint_interval=0.5, prunes=False)
# The checkpoints that must stay take more than their quota: pruning would want further ones, which could not go either.
EXHAUSTED: Final = Restraint(prunes=False)


__all__ = [
    "BUDGETS",
    "Budget",
    "Breaker",
    "BreakerRule",
    "BreakerState",
    "admitted",
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
