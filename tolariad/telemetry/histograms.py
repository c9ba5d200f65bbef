"""Add up from a run's events what was measured of each budget, for `tolaria status --budgets`.

Histograms are no state: nothing in a run depends on them, so they are not folded and no capture holds them. Promises:
the same events give the same histograms; an event costs nothing if it says nothing of a budget.
"""

from __future__ import annotations

import re
from typing import Final

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Histogram, added, with_one

_NOBODY: Final = m.Cause(0, 0)
_NAMES: Final = re.compile(b"|".join(kind.__name__.encode() for kind in st.OVERRUNS))


def may_add(raw: bytes) -> bool:
    """Return whether the event in these bytes may change a histogram; if not, it need not be decoded."""
    return _NAMES.search(raw) is not None


class BudgetHistograms:
    """The histograms of one run by budget, from the state that its first event finds."""

    def __init__(self, overruns: st.BudgetState | None = None) -> None:
        self._overruns = overruns or st.BudgetState()
        self.by_budget: dict[str, Histogram] = {}

    def add(self, event: m.Event) -> None:
        """Add what the event says; events come in the order of the journal."""
        apply = st.OVERRUNS.get(type(event))
        if apply is None:
            return
        if isinstance(event, m.BudgetsMeasured):
            self._add_tallies(event)
        elif type(event) in st.SAY:
            waits = st.waited(event)
            for name, value in st.measured(self._overruns, event):
                limit = self._overruns.limit_of(name)
                self.by_budget[name] = with_one(self._histogram(name), value, limit, waits.get(name))
        self._overruns = apply(self._overruns, event, _NOBODY)

    def _add_tallies(self, event: m.BudgetsMeasured) -> None:
        for one in event.tallies:
            # A newer trainer may know more budgets; what is kept stays bounded.
            if one.budget in BUDGETS:
                histogram = self._histogram(one.budget)
                self.by_budget[one.budget] = added(
                    histogram,
                    count=one.count,
                    breaches=one.breaches,
                    worst=one.worst,
                    counts=one.counts,
                    waits=one.waits,
                    clock=one.clock,
                )

    def _histogram(self, name: str) -> Histogram:
        return self.by_budget.get(name, Histogram())
