"""What the daemon itself spends, against its budgets: frames on their way to the disk, and telling of what they hold.

Promises: one turn in so many is looked at, so that no step is dearer for it; what is noted is bounded and told once a
minute. It must not know: limits of other runs, what follows from an overrun.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tolariad.core.budgets import BUDGETS
from tolariad.core.overruns import Overruns, in_unit, limits_of
from tolariad.core.tally import Meter, tallies, with_one
from tolariad.core.vocabulary.budgets import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core.settings import Settings
    from tolariad.kernel import Published

# One turn in so many.
SAMPLED: Final = 64
# Far more than a minute of a thousand turns a second has.
_NOTED_MAX: Final = 4096


class Spending:
    """`tell` sees every turn in the kernel's thread; `taken` is asked on the loop."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limits = Overruns(limits=limits_of(settings))
        self._clock = clock
        self._turns = 0
        self._noted: deque[tuple[str, float]] = deque(maxlen=_NOTED_MAX)

    def tell(self, published: Published, offer: Callable[[], object], queued: Callable[[], int]) -> None:
        """Call `offer`, which tells telemetry of this turn; `queued` says how many messages wait then. Raises what it does."""
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
        """Everything since this was asked last."""
        meters: dict[str, Meter] = {}
        while self._noted:
            name, value = self._noted.popleft()
            meters[name] = with_one(meters.get(name, Meter()), value, self._limits.limit_of(name))
        return tallies(meters)
