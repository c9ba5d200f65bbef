"""Circuit breaker, timer and memory budget for callers at the edge: core's rules with a clock.

Promises: no call raises for being late, and no budget stops anything: an overrun is told to whoever asked (Nissa's side)
and counted by a breaker. Objects are safe to share between threads. In the daemon the breaker folded from the journal is
the truth; these are for code that runs beside it, and for the library.
It must not know: torch, events, the journal.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from tolariad.core.stability import (
    DEVICE_COMPONENTS,
    GC_INTERVALS_S,
    MEMORY_SHARES,
    Breaker,
    BreakerRule,
    BreakerState,
    admitted,
    breaker_state,
    failed,
    succeeded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)


class CircuitBreaker:
    """Opens after `failure_threshold` failures in a row, is tried again after `reset_after_s`, closes when that goes well.

    `half_open_probes`: tries that `allows` lets through while half-open, and successes that close it. `clock`: seconds,
    never falling. Raises ValueError for a threshold, a wait or a number of probes below what makes sense.
    """

    def __init__(
        self,
        failure_threshold: int = 3,
        *,
        reset_after_s: float = 30.0,
        half_open_probes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if failure_threshold < 1 or half_open_probes < 1 or not reset_after_s > 0:
            raise ValueError(
                f"a breaker needs failure_threshold and half_open_probes of 1 or more and reset_after_s above 0, "
                f"not {failure_threshold}, {half_open_probes} and {reset_after_s}"
            )
        self._rule = BreakerRule(failures=failure_threshold, reset_s=reset_after_s, probes=half_open_probes)
        self._clock = clock
        self._lock = threading.Lock()
        self._breaker = Breaker()

    @property
    def state(self) -> BreakerState:
        """Where it stands now; compares equal to `closed`, `open` and `half_open`."""
        with self._lock:
            return breaker_state(self._breaker, self._rule, self._clock())

    def is_closed(self) -> bool:
        """Is it closed? Half-open is not; asking changes nothing."""
        return self.state is BreakerState.CLOSED

    def allows(self) -> bool:
        """May one try be made now? True counts as a probe while half-open: report how it went."""
        with self._lock:
            after = admitted(self._breaker, self._rule, self._clock())
            if after is not None:
                self._breaker = after
            return after is not None

    def record_failure(self) -> None:
        """What it protects failed."""
        with self._lock:
            self._breaker = failed(self._breaker, self._rule, self._clock())

    def record_success(self) -> None:
        """What it protects went well."""
        with self._lock:
            self._breaker = succeeded(self._breaker, self._rule, self._clock())

    def __repr__(self) -> str:
        rule = self._rule
        return f"CircuitBreaker({rule.failures}, reset_after_s={rule.reset_s:g}, state={self.state.value!r})"


class MonotonicTimer:
    """Durations in milliseconds from `time.perf_counter`, held against budgets."""

    @staticmethod
    def start_timer() -> float:
        """Seconds of `time.perf_counter`, to be handed to the two others."""
        return time.perf_counter()

    @staticmethod
    def within_budget_ms(start: float, budget_ms: float, on_violation: Callable[[float], None]) -> float:
        """Milliseconds since `start`; over the budget `on_violation` gets them before they are returned."""
        duration_ms = (time.perf_counter() - start) * 1000.0
        if duration_ms > budget_ms:
            on_violation(duration_ms)
        return duration_ms

    @staticmethod
    def check_budget_with_circuit_breaker(
        start: float, budget_ms: float, circuit_breaker: CircuitBreaker, operation_name: str
    ) -> bool:
        """Was `operation_name`, begun at `start`, within its budget? Recorded in the breaker; an overrun is logged."""
        duration_ms = (time.perf_counter() - start) * 1000.0
        if duration_ms > budget_ms:
            circuit_breaker.record_failure()
            _log.warning("%s took %.2f ms, its budget is %g ms", operation_name, duration_ms, budget_ms)
            return False
        circuit_breaker.record_success()
        return True


class MemoryBudgetManager:
    """How much memory each component may take, and when it is time to collect what a component no longer needs.

    `total_memory_gb` is host memory and everybody's pool; with `device_memory_gb` model, optimizer and gradients have
    their shares of that one instead. `shares` overrides single components or adds some (to the host pool); those of one
    pool must sum to at most 1. `collectors`: by component, what frees memory; a component without one runs Python's
    garbage collector. Sizes in GB of 1024^3 bytes. Raises ValueError for shares or sizes that cannot be.
    """

    def __init__(
        self,
        total_memory_gb: float,
        *,
        device_memory_gb: float | None = None,
        shares: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        collectors: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        self._shares = {**MEMORY_SHARES, **(shares or {})}
        self._totals = {"host": _size("total_memory_gb", total_memory_gb)}
        if device_memory_gb is not None:
            self._totals["device"] = _size("device_memory_gb", device_memory_gb)
        self._check_shares()
        self._clock = clock
        self._collectors = dict(collectors or {})
        for component in self._collectors:
            self._pool(component)
        self._lock = threading.Lock()
        started = clock()
        self._collected = dict.fromkeys(GC_INTERVALS_S, started)

    def allocate_budget(self, component: str) -> float:
        """The component's share in GB. Raises KeyError, naming the known ones, for a component that has none."""
        return self._totals[self._pool(component)] * self._shares[component]

    def trigger_gc_if_needed(self, component: str) -> bool:
        """Collect if the component's interval has passed since the last time; False where it has not, or it has none.

        Raises KeyError, naming the known ones, for a component that has no share.
        """
        self._pool(component)
        if component not in GC_INTERVALS_S:
            return False
        with self._lock:
            now = self._clock()
            if now - self._collected[component] <= GC_INTERVALS_S[component]:
                return False
            self._collected[component] = now
        self._collectors.get(component, gc.collect)()
        return True

    def _pool(self, component: str) -> str:
        if component not in self._shares:
            raise KeyError(f"no memory budget for {component!r}; there are {', '.join(sorted(self._shares))}")
        return "device" if "device" in self._totals and component in DEVICE_COMPONENTS else "host"

    def _check_shares(self) -> None:
        for component, share in self._shares.items():
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"the share of {component} must lie between 0 and 1, not {share}")
        for pool in self._totals:
            members = {name: share for name, share in self._shares.items() if self._pool(name) == pool}
            # fsum rounds once: ten shares of a tenth are 1, where adding them up is not.
            if math.fsum(members.values()) > 1.0:
                listed = ", ".join(f"{name} {share:g}" for name, share in members.items())
                raise ValueError(f"shares of {pool} memory sum to {math.fsum(members.values()):g}, at most 1: {listed}")


def _size(name: str, value: float) -> float:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a size above 0, not {value}")
    return float(value)
