"""Boundary, gate and fence: where the trainer listens, and what it does not do before it may."""

from __future__ import annotations

import threading
import time

import pytest

from tolariad.channel import Activity, Page, Reports, TrainerEnd, channel_pair
from tolariad.channel.page import _W_DURABLE, _W_FROZEN
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control, steps, trainer
from tolariad.trainer.errors import ToldToExit
from tolariad.trainer.orders import Orders

SOON: list[threading.Timer] = []


@pytest.fixture
def pair():
    """A daemon's end with an open page, the orders object over the trainer's, and the checkpoints taken."""
    daemon, theirs = channel_pair(1)
    daemon.page.thaw()
    taken = []
    orders = Orders(TrainerEnd(theirs, daemon.page), lambda order: taken.append(order.id))
    yield daemon, orders, taken
    while SOON:
        # What the trainer received was sent; the thread that sent it may not have returned from there.
        SOON.pop().join()
    daemon.close()


def values_of(step):
    return (step, 1, step, 1.0, 1.0, 0.1, 1)


def reports(daemon):
    return Reports(daemon, 1).drain(100)


def soon(action):
    """Do it in a moment, from another thread."""
    thread = threading.Timer(0.05, action)
    SOON.append(thread)
    thread.start()


def test_the_gate_opens_when_the_previous_step_is_durable(pair):
    """Not before: the thread stands there, says that it waits, and goes on by itself."""
    daemon, orders, _ = pair
    orders.gate()
    orders.report_step(values_of(1))
    seen = []

    def make_durable():
        seen.append(daemon.page.waiting)
        daemon.page.set_durable(1)

    begun = time.monotonic()
    soon(make_durable)
    orders.gate()
    assert time.monotonic() - begun >= 0.04
    assert seen == [True]
    assert not daemon.page.waiting


def test_a_step_may_be_on_its_way_to_the_disk_as_long_as_the_page_allows(pair, monkeypatch):
    """No longer: then the gate shuts until it is durable. Anything but a step is never allowed to lag."""
    daemon, orders, _ = pair
    marks = []
    monkeypatch.setattr(Page, "set_waiting", lambda page, number: marks.append(number))
    daemon.page.set_lag_ns(60_000_000_000)
    orders.report_step(values_of(1))
    orders.report_step(values_of(2))
    begun = time.monotonic()
    orders.gate()
    assert time.monotonic() - begun < 10
    assert marks == []  # an open gate is not waited at

    daemon.page.set_lag_ns(1)
    soon(lambda: daemon.page.set_durable(2))
    begun = time.monotonic()
    orders.gate()
    assert time.monotonic() - begun >= 0.04

    daemon.page.set_lag_ns(60_000_000_000)
    orders.report_gated(ck.RerunReport(first=1, last=2, compared=2))
    orders.report_step(values_of(3))
    soon(lambda: daemon.page.set_durable(3))
    begun = time.monotonic()
    orders.gate()
    assert time.monotonic() - begun >= 0.04


def test_the_gate_stays_shut_while_frozen(pair):
    """A durable step is not enough: the flag is looked at before every update."""
    daemon, orders, _ = pair
    orders.report_step(values_of(1))
    daemon.page.set_durable(1)
    daemon.page.freeze()
    begun = time.monotonic()
    soon(daemon.page.thaw)
    orders.gate()
    assert time.monotonic() - begun >= 0.04


@pytest.mark.parametrize("place", ["gate", "fence", "boundary", "wait_for_start", "serve_until_exit"])
def test_a_daemon_that_is_gone_ends_every_wait(pair, place):
    """End-of-file is an order to exit without another update, wherever the trainer stands."""
    daemon, orders, _ = pair
    orders.report_step(values_of(1))
    daemon.page.freeze()
    daemon._packets._socket.shutdown(2)
    with pytest.raises(ToldToExit):
        getattr(orders, place)()


def test_an_order_to_exit_is_obeyed_at_a_shut_gate(pair):
    """A frozen run can be stopped: the half step goes with the process."""
    daemon, orders, _ = pair
    orders.report_step(values_of(1))
    daemon.send(trainer.ExitTrainer())
    with pytest.raises(ToldToExit):
        orders.gate()


def test_hold_and_release(pair):
    """The trainer says where it stands, once a Hold, takes a checkpoint there, and goes on when it is released."""
    daemon, orders, taken = pair
    orders.step = 7
    daemon.send(control.Hold(cause=4))
    soon(lambda: (daemon.send(ck.TakeCheckpoint(id="a", reason=ck.CheckpointReason.ORDERED, cause=5)),
                  daemon.send(control.Hold()), daemon.send(control.Release(cause=9))))  # fmt: skip
    orders.boundary()
    held = control.HeldReport(step=7, rerunning=False)
    assert reports(daemon) == [held, held]
    assert taken == ["a"]
    assert orders.applied_cause == 9


def test_a_checkpoint_ordered_in_a_re_run_waits_for_its_end(pair):
    """A re-run repeats what happened; a Hold is obeyed there, a checkpoint is not taken."""
    daemon, orders, taken = pair
    daemon.page.freeze()
    orders.rerunning = True
    daemon.send(ck.TakeCheckpoint(id="a", reason=ck.CheckpointReason.ORDERED))
    daemon.send(control.Hold())
    daemon.send(control.Release())
    orders.boundary()
    assert taken == []
    assert reports(daemon) == [control.HeldReport(step=0, rerunning=True)]
    orders.rerunning = False
    daemon.page.thaw()
    orders.boundary()
    assert taken == ["a"]


def test_a_halt_stops_a_re_run_at_its_next_boundary(pair):
    """A gate that is only shut does not, it may be the re-run's end that opens it; a halt is for whatever changes the model."""
    daemon, orders, _ = pair
    orders.rerunning = True
    daemon.page.freeze()
    orders.boundary()
    daemon.page.halt()
    stood = []

    def thaw():
        stood.append(daemon.page.heartbeat.activity)
        daemon.page.thaw()

    soon(thaw)
    orders.boundary()
    assert stood == [Activity.GATE]
    assert daemon.page.heartbeat.activity is Activity.RERUN


def test_a_frozen_page_stops_the_trainer_at_the_boundary_where_orders_are_obeyed(pair):
    """The first checkpoint is ordered while nothing may be updated yet; at the gate it could not be taken."""
    daemon, orders, taken = pair
    daemon.page.freeze()

    def order_and_thaw():
        daemon.send(ck.TakeCheckpoint(id="first", reason=ck.CheckpointReason.START))
        deadline = time.monotonic() + 10
        while not taken and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.extend(taken)
        daemon.page.thaw()

    seen = []
    soon(order_and_thaw)
    orders.boundary()
    assert seen == ["first"]


def test_orders_before_the_start_wait_for_the_first_boundary(pair):
    """TrainFrom is picked out; what came with it is obeyed when training stands at a boundary."""
    daemon, orders, taken = pair
    daemon.send(ck.TakeCheckpoint(id="first", reason=ck.CheckpointReason.START))
    daemon.send(ck.TrainFrom(checkpoint=None, epochs=2, durable_step=0, cause=3), b"script")
    order, attachment = orders.wait_for_start()
    assert (order.epochs, attachment) == (2, b"script")
    assert taken == []
    orders.boundary()
    assert taken == ["first"]


def test_only_the_word_for_this_epoch_goes_on(pair):
    """A Continue that crossed with a restart changes nothing."""
    daemon, orders, taken = pair
    daemon.send(steps.Continue(epoch=1))
    daemon.send(ck.TakeCheckpoint(id="a", reason=ck.CheckpointReason.EPOCH))
    soon(lambda: daemon.send(steps.Continue(epoch=2)))
    orders.wait_for_continue(2)
    assert taken == ["a"]


def test_a_wait_keeps_beating(pair):
    """The heartbeat goes on at least every 100 ms while nothing happens."""
    daemon, orders, _ = pair
    orders.report_step(values_of(1))
    beats = set()
    watch = [threading.Timer(0.1 * n, lambda: beats.add(daemon.page.heartbeat.mono_ns)) for n in range(1, 5)]
    for timer in watch:
        timer.start()
    threading.Timer(0.5, lambda: daemon.page.set_durable(1)).start()
    orders.fence()
    assert len(beats) >= 3


def test_a_turn_between_two_looks_at_the_page_opens_nothing(pair):
    """The daemon closes the gate, then shows the number: whichever word is read first, the update does not begin."""
    _, orders, _ = pair
    orders.report_step(values_of(1))

    class Turning(Page):
        """Before the first look nothing has happened, behind it everything."""

        def __init__(self):
            self.looks = 0
            self._words = self

        def __getitem__(self, word):
            self.looks += 1
            shown = {_W_DURABLE: 1, _W_FROZEN: 1} if self.looks > 1 else {}
            return shown.get(word, 0)

    orders._page = Turning()
    assert not orders._is_open()
    assert not orders._is_open()
