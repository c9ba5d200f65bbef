"""Every bound of the control server. No client may cost the daemon more than this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one server. `calls` and `message_bytes` are per connection, `changes_per_s` per user id.

    One user gets at most `connections_a_user` of the `connections`. The last `connections_kept` are kept for operators.
    """

    message_bytes: int = 1 << 20
    calls: int = 64
    connections: int = 128
    connections_a_user: int = 64
    connections_kept: int = 32
    idle_s: float = 600.0
    stall_s: float = 60.0
    write_bytes: int = 1 << 18
    changes_per_s: float = 10.0
    changes_burst: int = 40
    answer_s: float = 30.0
    close_s: float = 1.0


_USERS_MAX: Final = 1024


class Rate:
    """A token bucket for each user: `burst` at once, `per_s` in the long run. Holds the most recent users only."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[int, tuple[float, float]] = {}

    def take(self, uid: int) -> bool:
        """Count one change by `uid`. Return False if that is one too many."""
        now = self._clock()
        tokens, since = self._buckets.pop(uid, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[uid] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._buckets) > _USERS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return allowed
