"""Measure the daemon's own work against its budgets: writing frames, and sending telemetry.

Promises: one turn in `SAMPLED` is measured, so that the cost for a step is negligible. Measurements are bounded in
number and recorded once a minute.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tolariad.core.health.budget_words import Tally
from tolariad.core.health.budgets import BUDGETS
from tolariad.core.health.histogram import Meter, tallies, with_one
from tolariad.core.health.overruns import Overruns, in_unit, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core.settings.model import Settings
    from tolariad.kernel import Published

# One turn in this many is measured.
SAMPLED: Final = 64
# Four times the samples of a minute at a thousand turns a second.
_NOTED_MAX: Final = 4096


class Spending:
    """The kernel's thread calls `tell` for every turn; the loop calls `taken`."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limits = Overruns(limits=limits_of(settings))
        self._clock = clock
        self._turns = 0
        self._noted: deque[tuple[str, float]] = deque(maxlen=_NOTED_MAX)

    def tell(self, published: Published, offer: Callable[[], object], queued: Callable[[], int]) -> None:
        """Call `offer` (it queues the telemetry of this turn) and measure it. `queued`: returns the queue's length."""
        self._turns += 1
        if self._turns % SAMPLED != 1:
            offer()
            return
        begun = self._clock()
        offer()
        took = self._clock() - begun
        note, count = self._noted.append, len(published.events)
        if published.write_ns:
            note(("journal_append", in_unit(BUDGETS["journal_append"], published.write_ns / 1e9)))
        if count:
            note(("telemetry_batch", in_unit(BUDGETS["telemetry_batch"], took)))
            note(("telemetry_put", in_unit(BUDGETS["telemetry_put"], took / count)))
        note(("telemetry_queue", float(queued())))

    def taken(self) -> tuple[Tally, ...]:
        """Return and clear the measurements since the last call."""
        meters: dict[str, Meter] = {}
        while self._noted:
            name, value = self._noted.popleft()
            meters[name] = with_one(meters.get(name, Meter()), value, self._limits.limit_of(name))
        return tallies(meters)
