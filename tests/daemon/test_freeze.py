"""CRITICAL and a lost journal stop the trainer through the shared page, at once and without a message."""

from __future__ import annotations

import time

import pytest

from tests.daemon.harness import SETS
from tests.daemon.outside import critical, diskless, page_of
from tolariad.core.calc.health.budgets import BUDGETS

# Five times what is promised: other things go on here.
LIMIT_S = 5 * BUDGETS["emergency_critical"].limit / 1e3


@pytest.fixture
def training(start, run_dir, request):
    """A trainer that makes steps and is not killed, and its page as seen from outside."""
    (run_dir / "spared").touch()
    # One epoch: at the end of one an order would go out in any case.
    environ = {"FAKE_STEP_S": request.param, "FAKE_EPOCH": "1000000"}
    # As a user does: the command line of the trainer tells where its page is.
    asked = {"module": "tests.daemon.start_spared", "task": "digits", "epochs": 1, "as_user": True}
    daemon = start(environ=environ, sets=SETS, **asked)
    daemon.until(lambda status: (status.get("step") or 0) >= 4, "step 4")
    page = page_of(daemon.status()["trainer"]["pid"])
    yield daemon, page
    page.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize("training", ["0.002", "0.05"], indirect=True)
@pytest.mark.parametrize("lead", [critical, diskless])
def test_the_page_alone_stops_the_trainer_in_time(training, lead):
    """No order is sent; the update in progress ends, and no other begins."""
    daemon, page = training
    seen = lead(daemon, page)
    step, orders = page.heartbeat.step, page.orders
    time.sleep(0.3)

    assert seen.frozen_s < LIMIT_S
    assert seen.stands_s < LIMIT_S
    assert (seen.steps <= 1, seen.orders) == (True, 0)
    assert page.halted
    assert (page.heartbeat.step, page.orders) == (step, orders)
    assert daemon.status()["phase"] == "frozen"
    assert daemon.status()["trainer"]["alive"]
