"""Programs outside import these names of core from where the interface says, wherever the code lies."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("interfaces", "ILRController"),
        ("pruning", "ProgressivePruningSchedule PruningPhase StructuredPruningPhaseManager"),
        ("stability", "BUDGETS Budget Breaker BreakerRule BreakerState breaker_rule breaker_state failed succeeded"),
        ("stability", "is_over may_leave_conservative reason_for_conservative"),
    ],
)
def test_a_name_is_where_the_interface_says(module, names):
    """Each is in the module, and is not a copy: it is defined in the layer that it belongs to."""
    found = importlib.import_module(f"tolariad.core.{module}")

    assert set(names.split()) - set(dir(found)) == set()
    assert set(getattr(found, "__all__", names.split())) >= set(names.split())
