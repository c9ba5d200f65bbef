"""Circuit breaker and memory budget for callers outside the daemon: the rules of core.stability with a clock.

Promises: no call raises because something was late, and no budget stops anything. An overrun is reported to the caller
(Nissa's side) and counted by a breaker. Objects may be shared between threads. In the daemon, the breaker folded from
the journal is the one that counts; these classes are for code beside it and for the library.
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
    """Opens after `failure_threshold` failures in a row, and half-opens after `reset_after_s` seconds.

    `half_open_probes`: how many calls of `allows` return True while half-open, and how many successes close it. `clock`
    returns seconds that never decrease. Raises ValueError if a threshold or a number of probes is below 1, or the wait
    is not above 0.
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
        """The state now. It compares equal to the strings `closed`, `open` and `half_open`."""
        with self._lock:
            return breaker_state(self._breaker, self._rule, self._clock())

    def is_closed(self) -> bool:
        """Return whether the breaker is closed (half-open is not). Changes nothing."""
        return self.state is BreakerState.CLOSED

    def allows(self) -> bool:
        """Return whether the operation may be tried now. While half-open, True uses up a probe: record its outcome."""
        with self._lock:
            after = admitted(self._breaker, self._rule, self._clock())
            if after is not None:
                self._breaker = after
            return after is not None

    def record_failure(self) -> None:
        """Record that the protected operation failed."""
        with self._lock:
            self._breaker = failed(self._breaker, self._rule, self._clock())

    def record_success(self) -> None:
        """Record that the protected operation succeeded."""
        with self._lock:
            self._breaker = succeeded(self._breaker, self._rule, self._clock())

    def __repr__(self) -> str:
        rule = self._rule
        return f"CircuitBreaker({rule.failures}, reset_after_s={rule.reset_s:g}, state={self.state.value!r})"


class MemoryBudgetManager:
    """How much memory each component may use, and when to collect the memory that it no longer needs.

    `total_memory_gb`: host memory, in GB of 1024^3 bytes. All components share it. With `device_memory_gb`, model,
    optimizer and gradients have their shares of device memory instead. `shares` overrides the share of a component, or
    adds a component to the host pool. The shares of one pool must sum to at most 1. `collectors`: by component, a
    function that frees memory; the default is Python's garbage collector. Raises ValueError for a share outside 0 to 1,
    a sum above 1, or a size that is not above 0.
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
        """Return the component's share in GB. Raises KeyError for an unknown component, naming the known ones."""
        return self._totals[self._pool(component)] * self._shares[component]

    def trigger_gc_if_needed(self, component: str) -> bool:
        """Collect if the component's interval has passed. Return False if it has not, or the component has none.

        Raises KeyError for an unknown component, naming the known ones.
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
            # fsum rounds once, at the end. A plain sum rounds after each addition and can exceed 1 for shares that make
            # up exactly 1.
            if math.fsum(members.values()) > 1.0:
                listed = ", ".join(f"{name} {share:g}" for name, share in members.items())
                raise ValueError(f"shares of {pool} memory sum to {math.fsum(members.values()):g}, at most 1: {listed}")


def _size(name: str, value: float) -> float:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a size above 0, not {value}")
    return float(value)
