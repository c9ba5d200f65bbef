"""Boundary, gate and fence: the trainer takes orders at the first and waits at the others."""

from __future__ import annotations

import time

import pytest

from tests.waiting import PATIENCE_S, within
from tolariad.channel import Activity, Page
from tolariad.channel.page import _W_DURABLE, _W_FROZEN
from tolariad.core import messages as m
from tolariad.trainer.errors import ToldToExit


def values_of(step):
    return (step, 1, step, 1.0, 1.0, 0.1, 1)


def test_the_gate_opens_when_the_previous_step_is_durable(listening):
    """The thread waits until then, reports the wait, and continues by itself."""
    daemon = listening.daemon
    listening.link.gate.wait()
    listening.link.gate.report_step(values_of(1))
    seen = []

    def make_durable():
        seen.append(within(PATIENCE_S, lambda: daemon.page.waiting))
        daemon.page.set_durable(1)

    begun = time.monotonic()
    listening.soon(make_durable)
    listening.link.gate.wait()
    assert time.monotonic() - begun >= 0.04
    assert seen == [True]
    assert not daemon.page.waiting


def test_a_step_may_be_on_its_way_to_the_disk_as_long_as_the_page_allows(listening, monkeypatch):
    """After the allowed lag the gate closes until the report is durable. Only step reports may lag."""
    daemon = listening.daemon
    marks = []
    monkeypatch.setattr(Page, "set_waiting", lambda page, number: marks.append(number))
    daemon.page.set_lag_ns(60_000_000_000)
    listening.link.gate.report_step(values_of(1))
    listening.link.gate.report_step(values_of(2))
    begun = time.monotonic()
    listening.link.gate.wait()
    assert time.monotonic() - begun < 10
    assert marks == []  # an open gate is not waited at

    daemon.page.set_lag_ns(1)
    begun = time.monotonic()
    listening.soon(lambda: daemon.page.set_durable(2))
    listening.link.gate.wait()
    assert time.monotonic() - begun >= 0.04

    daemon.page.set_lag_ns(60_000_000_000)
    listening.link.gate.report(m.RerunReport(first=1, last=2, compared=2))
    listening.link.gate.report_step(values_of(3))
    begun = time.monotonic()
    listening.soon(lambda: daemon.page.set_durable(3))
    listening.link.gate.wait()
    assert time.monotonic() - begun >= 0.04


def test_the_gate_stays_shut_while_frozen(listening):
    """A durable step is not enough: the freeze flag is checked before every update."""
    daemon = listening.daemon
    listening.link.gate.report_step(values_of(1))
    daemon.page.set_durable(1)
    daemon.page.freeze()
    begun = time.monotonic()
    listening.soon(daemon.page.thaw)
    listening.link.gate.wait()
    assert time.monotonic() - begun >= 0.04


@pytest.mark.parametrize(
    "place",
    [
        lambda one: one.link.gate.wait(),
        lambda one: one.link.gate.fence(),
        lambda one: one.boundary.stop(),
        lambda one: one.boundary.wait_for_start(),
        lambda one: one.boundary.serve_until_exit(),
    ],
    ids=["gate", "fence", "boundary", "start", "end"],
)
def test_a_daemon_that_is_gone_ends_every_wait(listening, place):
    """End-of-file is an order to exit without another update, at every wait."""
    daemon = listening.daemon
    listening.link.gate.report_step(values_of(1))
    daemon.page.freeze()
    daemon._packets._socket.shutdown(2)
    with pytest.raises(ToldToExit):
        place(listening)


def test_an_order_to_exit_is_obeyed_at_a_shut_gate(listening):
    """A frozen run can be stopped: the half-done step ends with the process."""
    daemon = listening.daemon
    listening.link.gate.report_step(values_of(1))
    daemon.send(m.ExitTrainer())
    with pytest.raises(ToldToExit):
        listening.link.gate.wait()


def test_hold_and_release(listening):
    """For each Hold the trainer reports its position once, takes a checkpoint there, and continues when released."""
    daemon, taken = listening.daemon, listening.taken
    listening.link.progress.reached(7)
    daemon.send(m.Hold(cause=4))
    listening.soon(lambda: (daemon.send(m.TakeCheckpoint(id="a", reason=m.CheckpointReason.ORDERED, cause=5)),
                  daemon.send(m.Hold()), daemon.send(m.Release(cause=9))))  # fmt: skip
    listening.boundary.stop()
    held = m.HeldReport(step=7, rerunning=False)
    assert listening.reports() == [held, held]
    assert taken == ["a"]


def test_a_checkpoint_ordered_in_a_re_run_waits_for_its_end(listening):
    """A Hold is obeyed during a re-run; a checkpoint is not taken."""
    daemon, taken = listening.daemon, listening.taken
    daemon.page.freeze()
    listening.link.progress.begin_rerun()
    daemon.send(m.TakeCheckpoint(id="a", reason=m.CheckpointReason.ORDERED))
    daemon.send(m.Hold())
    daemon.send(m.Release())
    listening.boundary.stop()
    assert taken == []
    assert listening.reports() == [m.HeldReport(step=0, rerunning=True)]
    listening.link.progress.end_rerun()
    daemon.page.thaw()
    listening.boundary.stop()
    assert taken == ["a"]


def test_a_halt_stops_a_re_run_at_its_next_boundary(listening):
    """A closed gate does not stop a re-run, whose end may open it; a halt does."""
    daemon = listening.daemon
    listening.link.progress.begin_rerun()
    daemon.page.freeze()
    listening.boundary.stop()
    daemon.page.halt()
    stood = []

    def thaw():
        stood.append(within(PATIENCE_S, lambda: daemon.page.heartbeat.activity is Activity.GATE))
        daemon.page.thaw()

    listening.soon(thaw)
    listening.boundary.stop()
    assert stood == [True]
    assert daemon.page.heartbeat.activity is Activity.RERUN


def test_a_frozen_page_stops_the_trainer_at_the_boundary_where_orders_are_obeyed(listening):
    """The first checkpoint is ordered while nothing may be updated yet; at the gate it could not be taken."""
    daemon, taken = listening.daemon, listening.taken
    daemon.page.freeze()

    def order_and_thaw():
        daemon.send(m.TakeCheckpoint(id="first", reason=m.CheckpointReason.START))
        within(PATIENCE_S, lambda: taken)
        seen.extend(taken)
        daemon.page.thaw()

    seen = []
    listening.soon(order_and_thaw)
    listening.boundary.stop()
    assert seen == ["first"]


def test_orders_before_the_start_wait_for_the_first_boundary(listening):
    """TrainFrom is taken first; other orders are obeyed at the first boundary."""
    daemon, taken = listening.daemon, listening.taken
    daemon.send(m.TakeCheckpoint(id="first", reason=m.CheckpointReason.START))
    daemon.send(m.TrainFrom(checkpoint=None, epochs=2, durable_step=0, cause=3), b"script")
    order, attachment = listening.boundary.wait_for_start()
    assert (order.epochs, attachment) == (2, b"script")
    assert taken == []
    listening.boundary.stop()
    assert taken == ["first"]


def test_only_the_word_for_this_epoch_goes_on(listening):
    """A Continue that crossed with a restart has no effect."""
    daemon, taken = listening.daemon, listening.taken
    daemon.send(m.Continue(epoch=1))
    daemon.send(m.TakeCheckpoint(id="a", reason=m.CheckpointReason.EPOCH))
    listening.soon(lambda: daemon.send(m.Continue(epoch=2)))
    listening.boundary.wait_for_continue(2)
    assert taken == ["a"]


def test_a_wait_keeps_beating(listening):
    """There are heartbeats while nothing happens: every 100 ms, but for the pauses of a busy machine."""
    daemon = listening.daemon
    listening.link.gate.report_step(values_of(1))
    beats = set()

    def watch():
        within(10.0, lambda: (beats.add(daemon.page.heartbeat.mono_ns), len(beats) > 10)[1])
        daemon.page.set_durable(1)

    listening.soon(watch)
    listening.link.gate.fence()
    assert len(beats) > 10


def test_a_turn_between_two_looks_at_the_page_opens_nothing(listening):
    """The daemon closes the gate before it shows the number, so the update does not begin in any order of reads."""
    listening.link.gate.report_step(values_of(1))

    class Turning(Page):
        """Everything happens right after the first check."""

        def __init__(self):
            self.looks = 0
            self._words = self

        def __getitem__(self, word):
            self.looks += 1
            shown = {_W_DURABLE: 1, _W_FROZEN: 1} if self.looks > 1 else {}
            return shown.get(word, 0)

    # The promise is the order of two reads within one check, which no caller can come between.
    listening.link.gate._page = Turning()
    assert not listening.link.gate._is_open()
    assert not listening.link.gate._is_open()
