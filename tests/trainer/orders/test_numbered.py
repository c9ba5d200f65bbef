"""The trainer's numbered list: boundary orders of two kinds act once, in their order, and each gets one answer."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.boundary.toys import Turn
from tolariad.channel import pair
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.vocabulary import TrainerEffect
from tolariad.trainer.orders import BoundaryOrders, Kind, OrderRefused
from tolariad.trainer.orders.numbered import ActedOrders, count_in_rates


class _Order(msgspec.Struct, frozen=True, array_like=True):
    effect: TrainerEffect | Turn


@pytest.fixture
def listed(listening, monkeypatch):
    """A list over the listening trainer's link, with handlers that write down what they carry out."""
    monkeypatch.setattr(pair, "_decode_order", msgspec.msgpack.Decoder(_Order))
    listening.link.inbox._handlers.pop(m.SetRate)
    listening.acted, listening.done = ActedOrders(), []
    listening.list = orders = BoundaryOrders(listening.acted, listening.link)

    def turn(order):
        if order.knob == "middle":
            raise OrderRefused("there is no such knob")
        listening.done.append(order)

    orders.obey_by({m.SetRate: Kind(listening.done.append), Turn: Kind(turn)})
    return listening


def rate(cause):
    return m.SetRate(group="default", value=0.5, cause=cause)


def turn(cause, knob="left"):
    return Turn(knob=knob, to=cause, cause=cause)


def answer(cause, refused=""):
    return m.BoundaryOrderReport(order=cause, applied_before_step=8, refused=refused)


def obeyed(listed, *orders):
    """Send them; the trainer comes to its next boundary, after step 7."""
    listed.link.progress.reached(7)
    for order in orders:
        listed.daemon.send(order)
    listed.boundary.stop()
    return listed.reports()


def test_two_kinds_act_in_the_order_of_sending_although_causes_fall(listed):
    """A cause is a key: a lower one that comes later is no old one."""
    orders = [rate(9), turn(4), rate(12), turn(2)]
    assert obeyed(listed, *orders) == [answer(9), answer(4), answer(12), answer(2)]
    assert listed.done == orders
    assert listed.acted.count == 4


def test_an_order_that_comes_again_is_dropped(listed):
    """Of either kind; whoever sent it has the answer already."""
    assert obeyed(listed, rate(9), turn(4), turn(4), rate(9)) == [answer(9), answer(4)]
    assert obeyed(listed, turn(4)) == []
    assert (listed.done, listed.acted.count) == ([rate(9), turn(4)], 2)


def test_a_refused_order_is_answered_with_the_reason_and_not_counted(listed):
    """It does not act later either: its end is in the journal."""
    assert obeyed(listed, turn(4, "middle"), turn(5)) == [answer(4, "there is no such knob"), answer(5)]
    assert obeyed(listed, turn(4, "left")) == []
    assert listed.acted.count == 1


def test_a_restored_state_knows_the_orders_that_it_contains(listed):
    """The script's first two are in the checkpoint; the others act again, and none that is sent again does."""
    restored = ActedOrders()
    restored.add(9)
    restored.add(4)
    listed.acted.restored(restored.count, restored.causes)
    numbered = enumerate([rate(9), turn(4), turn(30), rate(17)], 1)
    listed.list.repeat([m.ScriptOrder(3, 0, number, order) for number, order in numbered])

    assert listed.done == [turn(30), rate(17)]
    assert obeyed(listed, rate(9), turn(4), turn(30), rate(17), turn(31)) == [answer(31)]
    assert listed.acted.count == 5


def test_orders_of_an_epoch_s_end_act_before_training_goes_on(listed):
    """They were sent before Continue: the wait for it obeys them, and the answer names the next epoch's first step."""
    listed.link.progress.reached(7)
    listed.soon(lambda: [listed.daemon.send(one) for one in (turn(4), rate(9), m.Continue(epoch=1))])
    listed.boundary.wait_for_continue(1)

    assert listed.done == [turn(4), rate(9)]
    assert listed.reports() == [answer(4), answer(9)]


def test_a_kind_has_one_handler(listed):
    """A second one would act a second time."""
    with pytest.raises(ValueError, match="Turn has a handler already"):
        listed.list.obey_by({Turn: Kind(listed.done.append)})


def test_as_many_keys_are_kept_as_orders_may_wait():
    """The newest; the state that is saved is bounded by them."""
    acted = ActedOrders()
    for cause in range(1, st.WAITING_MAX + 3):
        acted.add(cause)
    assert 2 not in acted
    assert 3 in acted
    assert acted.count == st.WAITING_MAX + 2
    assert len(acted.causes) == st.WAITING_MAX


def test_the_count_of_an_older_checkpoint_is_taken_from_its_rates():
    """There the rates held it; a still older one held none."""
    rates = {"step": 3, "orders": 2}
    assert (count_in_rates(rates), rates) == (2, {"step": 3})
    assert count_in_rates({"step": 3}) == count_in_rates(None) == 0
