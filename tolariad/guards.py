"""Circuit breaker for callers outside the daemon: the rules of core.calc.health.breaker with a clock.

Promises: objects may be shared between threads. In the daemon, the breaker folded from the journal is the one that
counts; this class is for the rate controller, also without a daemon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tolariad.core.calc.health.breaker import Breaker, BreakerRule, BreakerState, breaker_state, failed, succeeded


class CircuitBreaker:
    """Opens after `failure_threshold` failures in a row, and half-opens after `reset_after_s` seconds.

    `half_open_probes` is the number of successes that close the breaker while it is half-open. `clock` returns seconds
    that never decrease. Raises ValueError if a threshold or a number of probes is below 1, or the wait is not above 0.
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
            # Refuse at construction: a breaker with such a rule would never open, or never close again, without a
            # message.
            raise ValueError(
                f"a breaker needs failure_threshold and half_open_probes of 1 or more and reset_after_s above 0, "
                f"not {failure_threshold}, {half_open_probes} and {reset_after_s}"
            )
        self._rule = BreakerRule(failures=failure_threshold, reset_s=reset_after_s, probes=half_open_probes)
        self._clock = clock
        self._lock = threading.Lock()
        # The state is an immutable value, and core.calc.health.breaker has the rules. The daemon folds the same rules
        # from the journal with the times of its events, so both agree on when a breaker opens.
        self._breaker = Breaker()

    @property
    def state(self) -> BreakerState:
        """The state now. It compares equal to the strings `closed`, `open` and `half_open`."""
        with self._lock:
            # The change from open to half-open is never stored: it follows from the time at which the breaker opened.
            return breaker_state(self._breaker, self._rule, self._clock())

    def is_closed(self) -> bool:
        """Return whether the breaker is closed (half-open is not). Changes nothing."""
        return self.state is BreakerState.CLOSED

    def record_failure(self) -> None:
        """Record that the protected operation failed."""
        with self._lock:
            # The time is read under the lock: two failures are then recorded in the order of their times.
            self._breaker = failed(self._breaker, self._rule, self._clock())

    def record_success(self) -> None:
        """Record that the protected operation succeeded."""
        # While the breaker is closed, this forgets earlier failures: only failures in a row open it.
        with self._lock:
            self._breaker = succeeded(self._breaker, self._rule, self._clock())

    def __repr__(self) -> str:
        rule = self._rule
        return f"CircuitBreaker({rule.failures}, reset_after_s={rule.reset_s:g}, state={self.state.value!r})"
