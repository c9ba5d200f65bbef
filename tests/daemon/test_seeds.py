"""Seeds by the control socket of a daemon: an order outlives kill -9 and acts once; a culled slot comes back."""

from __future__ import annotations

import os
import signal

import pytest

from tests import order_events
from tests.daemon.harness import SETS, CallFailed, of_type
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage

SLOTS = {"FAKE_SLOTS": "trunk,neck"}
# The trainer of these tests knows no strategy.
ALONE = [*SETS, "strategy=none"]
CULLED = [Stage.CULLED, Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT]


def test_a_move_that_is_accepted_outlives_kill_9_and_acts_once(start, run_dir):
    """The trainer stands still while the order is given, and both processes are killed: the next trainer obeys it."""
    daemon = start(environ={**SLOTS, "FAKE_TRAINER": "crawl@4"}, sets=ALONE)
    status = daemon.until(lambda status: status["step"] >= 4)
    os.kill(status["trainer"]["pid"], signal.SIGSTOP)
    given = {"slot": "trunk", "blueprint": "conv", "parameters": {"width": 2.0}, "id": "first", "reason": "it stalls"}
    answer = daemon.call("SeedsGerminate", **given)
    assert daemon.call("SeedsGerminate", **given) == answer
    with pytest.raises(CallFailed, match=r"Refused.*ordered already"):
        daemon.call("SeedsCull", slot="trunk")
    with pytest.raises(CallFailed, match=r"NotFound.*did you mean neck"):
        daemon.call("SeedsGerminate", slot="nek", blueprint="conv")
    (row,) = [one for one in daemon.call("SeedsList")["seeds"]["slots"] if one["slot"] == "trunk"]
    assert (row["stage"], row["waiting"]) == ("DORMANT", "GERMINATED")
    daemon.kill()
    os.kill(status["trainer"]["pid"], signal.SIGKILL)
    assert of_type(run_dir, order_events.acted(m.MoveSeed)) == []

    again = start(environ=SLOTS, sets=ALONE)
    assert again.wait() == 0, again.stderr
    (ordered,) = of_type(run_dir, order_events.given(m.MoveSeed))
    (moved,) = of_type(run_dir, order_events.acted(m.MoveSeed))
    assert (ordered.order.number, ordered.order.parameters, ordered.actor.reason) == (1, {"width": 2.0}, "it stalls")
    assert (moved.order.stage, moved.order.number, moved.outcome.parameters_added) == (Stage.GERMINATED, 1, 4)
    assert moved.cause == answer["seq"]
    assert len(of_type(run_dir, m.SeedSlotsRegistered)) == 1


def test_a_culled_slot_comes_back_by_itself_while_training_goes_on(start, run_dir):
    """Cull and embargo at once, the rest after an epoch; the status then shows no seed."""
    daemon = start(
        environ={**SLOTS, "FAKE_STEP_S": "0.01", "FAKE_EPOCH": "20"},
        epochs=100_000,
        sets=[*ALONE, "seeds.embargo_epochs=1"],
    )
    daemon.until(lambda status: status["step"] >= 2)
    daemon.call("SeedsGerminate", slot="neck", blueprint="conv")
    status = daemon.until(lambda status: status["seeds"])
    assert status["seeds"] == [{"slot": "neck", "stage": "GERMINATED", "alpha": 0.0}]
    daemon.call("SeedsCull", slot="neck")
    wait_for(lambda: len(of_type(run_dir, order_events.acted(m.MoveSeed))) > len(CULLED))
    daemon.call("Stop")
    assert daemon.wait() == 0, daemon.stderr
    assert [one.order.stage for one in of_type(run_dir, order_events.acted(m.MoveSeed))] == [Stage.GERMINATED, *CULLED]


def test_a_model_without_slots_refuses_with_the_page(start):
    """Nothing is recorded; the list is empty."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@2"})
    daemon.until(lambda status: status["step"] >= 2)
    with pytest.raises(CallFailed, match=r"NotFound.*docs/growing.md"):
        daemon.call("SeedsGerminate", slot="trunk", blueprint="conv")
    assert daemon.call("SeedsList")["seeds"]["slots"] == []
