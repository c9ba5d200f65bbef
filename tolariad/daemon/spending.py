"""Measure the daemon's own work against its budgets: writing frames.

Promises: one turn in `SAMPLED` is measured, so that the cost for a step is negligible. Measurements are bounded in
number and recorded once a minute.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Histogram, with_one
from tolariad.core.calc.settings.model import Settings
from tolariad.kernel import Published

# One turn in this many is measured.
SAMPLED: Final = 64
# Four times the samples of a minute at a thousand turns a second.
_NOTED_MAX: Final = 4096


class Spending:
    """The kernel's thread calls `tell` for every turn; the loop calls `taken`."""

    def __init__(self, settings: Settings) -> None:
        self._limits = st.BudgetState(limits=st.limits_of(settings))
        self._turns = 0
        self._noted: deque[tuple[str, float]] = deque(maxlen=_NOTED_MAX)

    def tell(self, published: Published) -> None:
        """Measure a durable turn, if it is one of those that are measured."""
        self._turns += 1
        if self._turns % SAMPLED == 1 and published.write_ns:
            self._noted.append(("journal_append", st.in_unit(BUDGETS["journal_append"], published.write_ns / 1e9)))

    def taken(self) -> tuple[m.BudgetHistogram, ...]:
        """Return and clear the measurements since the last call."""
        histograms: dict[str, Histogram] = {}
        while self._noted:
            name, value = self._noted.popleft()
            histograms[name] = with_one(histograms.get(name, Histogram()), value, self._limits.limit_of(name))
        return m.tallies(histograms)
