"""The packet counts the findings of an epoch that called for more than a record."""

from __future__ import annotations

import pytest

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal

FOUND = m.InstabilityDetected(
    finding=Finding.SUSTAINED, signal=Signal.LOSS, step=9, epoch=1, batch=9, value=3.0, baseline=0.5, limit=2.0
)


@pytest.mark.parametrize(
    ("given", "counts"), [({}, 0), ({"insured": True}, 1), ({"level": m.Level.MAJOR}, 1), ({"goes_on": True}, 1)]
)
def test_a_finding_that_is_insured_counts_as_one_with_a_level(given, counts):
    """A finite rise has no level: the autopilot answers it. `goes_on` is that of older journals."""
    event = m.InstabilityDetected.of(FOUND, **given)
    counted = st.strategy.APPLY[m.InstabilityDetected](st.Strategy(), event, 1)

    assert counted.findings == counts
