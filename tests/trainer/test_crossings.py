"""Orders and reports that cross with a rollback: nothing of the line that was left acts on the new one, and nobody waits on."""

from __future__ import annotations

import dataclasses

import pytest

from tests.trainer.conftest import FakeDaemon
from tests.trainer.test_orders import soon
from tolariad.channel import Reports, TrainerEnd, channel_pair
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control, steps
from tolariad.core.vocabulary import learning_rate as lv
from tolariad.core.vocabulary import rollback as rb
from tolariad.trainer.orders import Orders
from tolariad.trainer.rollback import RollbackCommitted

COMMIT = rb.CommitRollback(rollback="r")
NOWHERE = ck.CheckpointRef(id="c000009", step=0, epoch=1, batch=0, manifest="ab")


@dataclasses.dataclass
class Refused(FakeDaemon):
    """Orders a rollback to what is not there just when training ends; its word of that end is not heard, as in the kernel."""

    def _answer(self, report):
        match report:
            case steps.TrainingEndedReport() if not self.refusals:
                self.end.send(rb.PrepareRollback(rollback="r0001", checkpoint=NOWHERE, tier=rb.Tier.FULL))
            case rb.RollbackRefusedReport():
                self.end.send(rb.AbortRollback(rollback="r0001"))
            case _:
                super()._answer(report)

    @property
    def refusals(self):
        return [one for one in self.reports if isinstance(one, rb.RollbackRefusedReport)]


def test_an_end_that_crossed_with_a_rollback_that_was_given_up_is_told_again(tmp_path, configured):
    """Else the trainer would wait for its last checkpoint, and its daemon for the end, for ever."""
    (tmp_path / "run").mkdir()
    daemon = Refused(tmp_path / "run", 1)
    daemon.train_here(configured("digits", epochs=1))

    assert [one.file for one in daemon.refusals] == ["manifest.json"]
    assert len([one for one in daemon.reports if isinstance(one, steps.TrainingEndedReport)]) == 2
    assert daemon.committed[-1].id == "end"


@pytest.fixture
def pair():
    """A daemon's end with an open page, and orders over the other whose commit of a rollback unwinds as the desk's does."""
    daemon, theirs = channel_pair(1)
    daemon.page.thaw()
    orders = Orders(TrainerEnd(theirs, daemon.page), lambda _: None)

    def roll_back(order):
        if isinstance(order, rb.CommitRollback):
            raise RollbackCommitted

    orders.roll_back = roll_back
    yield daemon, orders
    daemon.close()


@pytest.mark.parametrize("place", ["boundary", "serve_until_exit", "hold"])
def test_the_word_to_end_of_the_line_that_was_left_does_not_end_the_new_one(pair, place):
    """A limit that was reached there is not reached here: the kernel says so anew when it is. Wherever training stood."""
    daemon, orders = pair
    if place == "hold":
        daemon.send(control.Hold())
    daemon.send(steps.EndTraining())
    soon(lambda: daemon.send(COMMIT)) if place == "hold" else daemon.send(COMMIT)
    with pytest.raises(RollbackCommitted):
        orders.boundary() if place == "hold" else getattr(orders, place)()
    orders.rolled_back(rb.RolledBackReport(rollback="r", step=4, commit_s=0.1, confirm_s=0.1))
    daemon.page.set_durable(Reports(daemon, 1).drain(9) and 9)
    orders.boundary()

    assert not orders.told_to_end


def test_an_order_that_waits_for_its_time_outlives_a_rollback_amid_a_pause(pair):
    """Behind an epoch's end that is told of again a rate waits; it is set when that is over, not forgotten."""
    daemon, orders = pair
    orders.behind = True
    applied = []
    orders._set_rate = applied.append
    order = lv.SetRate(group="default", value=0.5, cause=7)
    daemon.send(order)
    daemon.send(control.Hold())
    soon(lambda: daemon.send(COMMIT))
    with pytest.raises(RollbackCommitted):
        orders.boundary()
    orders.rolled_back(rb.RolledBackReport(rollback="r", step=4, commit_s=0.1, confirm_s=0.1))
    assert applied == []
    orders.behind = False
    orders.boundary()

    assert applied == [order]
