"""The audit finds changes that no hook sees, and reports nothing otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.tasks import tampering
from tolariad.core import messages as m

TASK = f"{Path(tampering.__file__)}:Tampering"
SAYS = {
    "wrapped_step": "changed between two updates",
    "through_data": "changed between two updates",
    "cleared_hooks": "did not run before this update",
}


@pytest.fixture
def audited(daemon_in, configured):
    """Train with a route, and audit every second update. Return the audit's reports."""

    def train(route, optimizer="sgd", **options):
        daemon = daemon_in(f"{route}-{optimizer}", 2)
        options = {"route": route, "optimizer": optimizer, **options}
        daemon.train_here(configured(TASK, epochs=2, batch_size=8, task_options=options, audit={"every_steps": 2}))
        assert daemon.ended
        return daemon.of(m.AuditDiffered)

    return train


@pytest.mark.parametrize("optimizer", tampering.OPTIMIZERS)
def test_an_honest_run_is_never_accused(audited, optimizer):
    """For each class, the update computed again is equal, bit for bit."""
    assert audited("none", optimizer) == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("optimizer", tampering.OPTIMIZERS)
def test_a_run_whose_tampering_is_put_right_is_not_accused_either(audited, optimizer):
    """A change that the guard corrects never affects an update."""
    assert audited("all", optimizer) == []


@pytest.mark.parametrize("route", tampering.ESCAPES)
def test_what_escapes_the_guard_is_shown(audited, route):
    """The report names the parameter and the difference."""
    found = audited(route)
    assert found
    assert all(SAYS[route] in report.what for report in found if report.step > 2), found
    assert {report.parameter for report in found} <= {"0.weight", "0.bias", "2.weight", "2.bias"}
