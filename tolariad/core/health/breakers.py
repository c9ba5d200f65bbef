"""The circuit breaker, as functions of values.

Promises: every function is pure and total; time is an argument, in seconds of a clock that only rises. A time that lies
before the one a value remembers comes from another boot, and what was waited for counts as over.
It must not know: clocks, events, what a breaker protects.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.settings import model

BreakerRule: TypeAlias = model.Breaker


class BreakerState(StrEnum):
    """Closed: go on. Open: what it protects is not tried. Half-open: a few tries decide which of the two comes next."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(Struct, frozen=True):
    """A breaker's memory; its rule (`failures`, `reset_s`, `probes`) and the time are arguments of every question.

    `failures` in a row while closed; `opened`, when it opened (None: closed); `successes` since it became half-open.
    """

    failures: int = 0
    opened: float | None = None
    successes: int = 0


def breaker_state(breaker: Breaker, rule: BreakerRule, now: float) -> BreakerState:
    """Where the breaker stands at `now`. Half-open is never stored: an open one becomes it by waiting."""
    if breaker.opened is None:
        return BreakerState.CLOSED
    return BreakerState.HALF_OPEN if is_over(breaker.opened, rule.reset_s, now) else BreakerState.OPEN


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


def breaker_rule(settings: model.Settings, name: str) -> BreakerRule:
    """The rule of the breaker `name`: its entry under `breakers`, else the default (`lr` has its own threshold)."""
    given = settings.breakers.get(name)
    if given is not None:
        return given
    if name == "lr":
        return BreakerRule(failures=settings.learning_rate.circuit_breaker_threshold)
    return BreakerRule()


def is_over(since: float, seconds: float, now: float) -> bool:
    """Have so many seconds passed since then?"""
    # The sum, not the difference: whoever waits until `since + seconds` is then never told that it was too early by a bit.
    return not since <= now < since + seconds
