"""Boundary orders of two kinds in one numbered list: a rate, and one of these tests (tests/core/boundary/toys.py)."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.boundary.toys import Turn, TurningWorld
from tests.core.rates.test_rates_restored import gone_back
from tests.core.simulate import find, take_checkpoint, until, until_found
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.rules.table.orders import ACTS

ACTED = m.OrderActed
TURNED = order_events.acted(Turn)


def acted(world):
    """Return the orders that acted, in order: number, step, kind."""
    return [(event.number, event.applied_before_step, type(event.order).__name__) for event in find(world, ACTED)]


def two_of_each(world):
    """Order a rate, a turn, a rate and a turn."""
    world.lr_set("head", 0.01)
    world.turn("left", 1)
    world.lr_set("body", 0.05)
    world.turn("right", 2)


def until_acted(world, number):
    for _ in range(300):
        if world.state.boundary.acted >= number:
            return world
        world.tick()
    raise AssertionError(f"{world.state.boundary}")


def test_orders_of_two_kinds_act_in_the_order_in_which_they_were_given():
    """One list, one numbering, one place."""
    world = until(TurningWorld(0), 2)
    two_of_each(world)
    assert [type(one.order).__name__ for one in world.state.boundary.waiting] == ["SetRate", "Turn"] * 2
    until_acted(world, 4)

    assert acted(world) == [(1, 3, "SetRate"), (2, 3, "Turn"), (3, 3, "SetRate"), (4, 3, "Turn")]
    assert world.state.boundary.waiting == ()
    assert world.trainer.knobs == {"left": 1, "right": 2}


def test_orders_that_wait_go_to_the_next_trainer_in_their_order():
    """All of them, whatever their kinds, each with its own cause."""
    world = until(TurningWorld(0), 6)
    world.crash_trainer()
    two_of_each(world)
    causes = [one.cause.seq for one in world.state.boundary.waiting]
    until_found(world, m.ExecutionContextRecorded)
    sent = [one for one in world.trainer.orders if isinstance(one, m.BoundaryOrder)]
    world.run()

    assert [(type(one).__name__, one.cause) for one in sent] == list(zip(["SetRate", "Turn"] * 2, causes, strict=True))
    assert [kind for _, _, kind in acted(world)] == ["SetRate", "Turn"] * 2


def test_a_refused_order_has_its_end_and_no_number():
    """The next one that acts gets the number that it would have had."""
    world = until(TurningWorld(0), 2)
    cause = world.turn("middle", 5)
    world.turn("left", 1)
    until_acted(world, 1)

    (aborted,) = find(world, order_events.aborted(Turn))
    assert (aborted.cause, aborted.why) == (cause, "there is no knob 'middle'")
    assert [(one.number, one.order.knob) for one in find(world, TURNED)] == [(1, "left")]
    assert world.state.boundary.waiting == ()


def test_a_second_answer_to_one_order_changes_nothing():
    """The order is known by its key, and has its end already."""
    world = until(TurningWorld(0), 2)
    cause = world.turn("left", 1)
    until_acted(world, 1)
    before = world.state
    world.trainer.todo.append(m.BoundaryOrderReport(order=cause, applied_before_step=3))
    world.tick()

    assert world.state == before


@pytest.mark.parametrize("checkpoint", ["before", "between", "after"])
def test_a_re_run_repeats_the_orders_that_its_checkpoint_does_not_hold(checkpoint):
    """Each once, at its step; the checkpoint counts those of every kind that it holds."""
    world = until(TurningWorld(0, checkpoint_every_epochs=100), 2)
    order = [lambda: world.lr_set("head", 0.01), lambda: world.turn("left", 1)]
    order += [lambda: world.turn("left", 2), lambda: world.lr_set("body", 0.05)]
    for number, give in enumerate(order, 1):
        if (number, checkpoint) in ((1, "before"), (3, "between")):
            take_checkpoint(world)
        give()
        until_acted(world, number)
    if checkpoint == "after":
        take_checkpoint(world)
    held = {"before": 0, "between": 2, "after": 4}[checkpoint]
    assert world.state.checkpoints.newest.orders == held
    until(world, 7)
    known = world.trainer.knobs, world.trainer.groups
    world.crash_trainer()
    until_found(world, m.TrainingStarted)
    script = [(one.number, type(one.order).__name__) for one in world.trainer.script_orders if one.number > held]
    until_found(world, m.RerunFinished)

    assert script == [(1, "SetRate"), (2, "Turn"), (3, "Turn"), (4, "SetRate")][held:]
    assert (world.trainer.knobs, world.trainer.groups) == known
    assert world.trainer.applied == world.state.boundary.acted == 4
    assert len(acted(world)) == 4
    assert find(world, m.LrViolationDetected) == []


def test_a_rollback_takes_back_the_orders_after_its_target_and_the_count_of_them():
    """Of both kinds; what waits meanwhile acts once, on the new branch."""
    world = until(TurningWorld(0), 6)
    two_of_each(world)
    until_acted(world, 4)
    gone_back(world, epoch=1)
    assert (world.state.boundary.acted, world.trainer.knobs) == (0, {})
    world.turn("right", 7)
    world.run()

    assert acted(world)[-1][0] == 1
    assert world.state.run.phase is st.Phase.COMPLETED


def test_orders_of_all_kinds_together_are_bounded():
    """One more is refused with the reason."""
    world = until(TurningWorld(0), 2)
    for number in range(st.WAITING_MAX):
        world.turn("left", number)
    assert isinstance(world.lr_set("head", 0.01), m.Refusal)


def test_the_digest_covers_what_every_kind_of_order_did_and_not_when_it_was_recorded():
    """An order that no step's report shows tells two runs apart; its sequence number does not."""

    def digest(to, notes):
        world = until(TurningWorld(0), 2)
        for _ in range(notes):
            world.command(m.Note(text="hm"))
        world.turn("left", to)
        world.run()
        return world.state.boundary.digest

    assert digest(1, 0) == digest(1, 3)
    assert digest(1, 0) != digest(2, 0)


def test_every_kind_of_order_is_in_the_codec():
    """A concern's orders are found where they are defined; the two of tests are none of them."""
    defined = {kind for kind in m.BoundaryOrder.__subclasses__() if kind.__module__.startswith("tolariad.")}

    assert set(m.BOUNDARY_ORDERS) == defined
    assert set(ACTS) <= defined
    assert len({name for kind in defined for name in kind.ACCEPTS}) == sum(len(kind.ACCEPTS) for kind in defined)


def test_disasters_change_nothing_of_orders_of_two_kinds(seed):
    """In thirty drawn worlds each order has one end at most, each number occurs once on a branch, and knobs follow the
    journal.
    """
    count = 0
    for offset in range(30):
        world = TurningWorld(seed + offset, deaths_max=50)
        for _ in range(300):
            if world.random.random() < 0.05:
                world.turn(world.random.choice(["left", "right", "middle"]), world.random.randrange(9))
            world.anything()
        ends = [event.cause for event in world.events if isinstance(event, (ACTED, m.OrderAborted))]
        numbers = [number for number, _, _ in acted(world)]
        assert len(ends) == len(set(ends)), f"seed {seed + offset}"
        assert numbers == list(range(1, len(numbers) + 1)), f"seed {seed + offset}"
        assert find(world, m.LrViolationDetected) == [], f"seed {seed + offset}"
        trainer = world.trainer
        if trainer is not None and trainer.applied == world.state.boundary.acted and not trainer.script_orders:
            last = {one.order.knob: one.order.to for one in find(world, TURNED)}
            assert trainer.knobs == last, f"seed {seed + offset}"
        count += len(find(world, TURNED))
    print(f"{count} turns acted")
    assert count >= 30
