"""A limit on how often something is done: a token bucket. Pure; the caller has the clock."""

from __future__ import annotations


class TokenBucket:
    """At most `burst` at once, and `per_s` more each second."""

    def __init__(self, per_s: float, burst: int) -> None:
        """The bucket is full."""
        self._per_s = per_s
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at: float | None = None

    def take(self, now_s: float) -> float:
        """Take a token and return 0; without one, return the seconds until there is one, and take nothing."""
        passed = 0.0 if self._at is None else max(0.0, now_s - self._at)
        self._at = now_s
        self._tokens = min(self._burst, self._tokens + passed * self._per_s)
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._per_s
        self._tokens -= 1.0
        return 0.0
