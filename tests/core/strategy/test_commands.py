"""The commands of an answer: each is obeyed or refused by itself, once, in its order; a rollback voids the rest."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.boundary.test_orders import acted
from tests.core.simulate import find, tick_until, until, until_found
from tests.core.strategy.asked import SLOTS, StrategyWorld, command, refusals
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.learning_rate.group import rate_of
from tolariad.core.calc.seeds.stages import Stage


def seed(slot="first", stage=Stage.GERMINATED, blueprint="bottleneck", id_="s1", **more):
    order = m.AdaptSeed(slot=slot, stage=stage, blueprint=blueprint, reason="plateau", **more)
    return command(order, id_, "COMMAND_SEED")


def adjust(id_="o1", optimizer="", **values):
    return command(m.AdjustOptimizer(optimizer=optimizer, values=values, reason="unstable"), id_)


def rollback(id_="r1", **more):
    return command(m.Rollback(reason="worse", **more), id_, "COMMAND_ROLLBACK")


def breaker(name, state, id_="b1"):
    return command(m.SetBreaker(breaker=name, state=state, reason="noisy disk"), id_, "COMMAND_CIRCUIT_BREAKER")


def test_a_seed_germinates_by_the_rules_that_hold_for_operators():
    """The move is ordered of the trainer before training goes on, in the strategy's name and with its reason."""
    world = StrategyWorld(0, slots=SLOTS).until_asked().answer(seed())
    (ordered,) = find(world, order_events.given(m.MoveSeed))

    assert (ordered.order.slot, ordered.order.stage, ordered.order.number, ordered.id) == (
        "first",
        Stage.GERMINATED,
        1,
        "s1",
    )
    assert (ordered.actor.program, ordered.actor.reason) == ("strategy", "plateau")
    assert [type(one) for one in world.sent[-2:]] == [m.MoveSeed, type(world.sent[-1])]
    assert world.continued() == [1]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (seed("third"), "there is no slot 'third'; there are first, second"),
        (seed(stage=Stage.BLENDING), "slot first is empty"),
        (
            seed(blueprint="bottelneck"),
            "there is no blueprint 'bottelneck'; there are bottleneck; did you mean bottleneck?",
        ),
        (adjust(optimizer="generator", lr=0.1), "there is no optimizer or group 'generator'"),
        (adjust(lr=50.0), "learning_rate.max_order_factor"),
        (rollback(epoch=9), "epoch 9 is not reached yet"),
        (command(m.Pause(), "p1", expires=1), "it had to begin"),
        (breaker("nobody", BreakerState.OPEN), "there is no breaker 'nobody'"),
        (m.StrategyCommand(kind="COMMAND_STRUCTURAL_PRUNING", id="x", refused="it does not prune."), "does not prune"),
    ],
)
def test_a_command_that_cannot_be_obeyed_is_refused_and_the_others_act(wrong, why):
    """Each refusal is an event with command, id and reason; it is no failure of the strategy."""
    world = StrategyWorld(0, slots=SLOTS).until_asked()
    world.answer(adjust("first", weight_decay=0.5), wrong, adjust("last", eps=1e-6))
    (refused,) = find(world, m.CommandRefused)

    assert (refused.command, refused.id, refused.actor.program) == (wrong.kind, wrong.id, "strategy")
    assert why in refused.why
    assert world.state.overruns.breakers.get("strategy_deadline") is None
    until(world, 5)
    assert world.trainer.hyper == {"weight_decay": 0.5, "eps": 1e-6}


def test_a_command_that_comes_twice_acts_once():
    """Within an answer, in a later answer, and after a restart; also one that was refused. It is said in the answer."""
    world = StrategyWorld(0, slots=SLOTS).until_asked()
    world.answer(adjust("a", weight_decay=0.5), adjust("a", weight_decay=0.5), seed("third", id_="b"))
    until(world, 6)
    world.restart_daemon()
    world.until_asked(2).answer(adjust("a", weight_decay=0.9), seed("third", id_="b"), adjust("c", eps=1e-6))
    world.finish()

    assert [event.repeated for event in find(world, m.StrategyAnswered)] == [("a",), ("a", "b")]
    assert [event.order.values for event in find(world, order_events.acted(m.SetHyperparameters))] == [
        {"weight_decay": 0.5},
        {"eps": 1e-6},
    ]
    assert len(refusals(world)) == 1


def test_a_rate_of_an_optimizer_moves_all_its_groups_in_their_ratio():
    """The value is that of the first group; one that stands at 0 stays there; the id is remembered once."""
    world = StrategyWorld(0).until_asked()
    step = world.state.progress.step + 1
    before = {group.name: rate_of(group, step) for group in world.state.rates.groups}
    half = before["body"] / 2
    world.answer(adjust(lr=half))
    ordered = {event.order.group: event.order.value for event in find(world, order_events.given(m.SetRate))}

    assert ordered == {name: pytest.approx(before[name] / 2) for name in ("body", "head", "seed")}
    assert before["still"] == 0.0
    assert [event.id for event in find(world, order_events.given(m.SetRate))] == ["o1", "", ""]
    assert world.state.control.outcome("o1") is not None
    until(world, 5)
    assert len(find(world, order_events.acted(m.SetRate))) == 3


def test_a_group_can_be_adjusted_alone():
    """By its name; the values go to the trainer with it."""
    world = StrategyWorld(0).until_asked().answer(adjust(optimizer="head", lr=0.03, eps=1e-6))
    assert [(event.order.group, event.order.value) for event in find(world, order_events.given(m.SetRate))] == [
        ("head", 0.03)
    ]
    until(world, 5)
    assert [event.order.optimizer for event in find(world, order_events.acted(m.SetHyperparameters))] == ["head"]


def test_hyper_parameters_that_the_trainer_refuses_change_nothing():
    """The reason is the trainer's; other orders of the answer act."""
    world = StrategyWorld(0).until_asked().answer(adjust("a", nesterov=1.0), adjust("b", eps=1e-6))
    until(world, 5)

    (aborted,) = find(world, order_events.aborted(m.SetHyperparameters))
    assert "nesterov" in aborted.why
    assert acted(world) == [(1, 5, "SetHyperparameters")]


def test_a_rollback_comes_first_and_makes_the_rest_void():
    """Its place in the answer makes no difference; its target and reason are the command's."""
    world = StrategyWorld(0, slots=SLOTS)
    world.until_asked(2).answer(adjust("a", eps=1e-6), seed(id_="b"), rollback("r", epoch=1), state=b"two")
    (requested,) = find(world, m.RollbackRequested)

    assert (requested.id, requested.actor.program, requested.actor.reason) == ("r", "strategy", "worse")
    assert [one.partition(",")[0] for one in refusals(world)] == [
        "the run goes back or halts by an order of the same answer"
    ] * 2
    assert world.state.strategy.rollbacks == 1
    world.vote()
    until_found(world, m.RolledBack)
    assert world.state.strategy.rollbacks == 1
    world.finish()
    assert find(world, order_events.acted(m.SetHyperparameters)) == []
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_strategy_goes_back_twice_from_one_place_and_the_third_order_is_refused():
    """Training goes on then, and past that place it may go back again. So no strategy keeps a run from its end."""
    world = StrategyWorld(0)
    for times in (1, 2):
        world.until_asked(1).answer(rollback(f"r{times}", step=0)).vote()
        tick_until(world, lambda times=times: len(find(world, m.RolledBack)) == times, "it went back")
    place = world.state.strategy.back_from
    world.until_asked(1).answer(rollback("r3", step=0))

    (why,) = refusals(world)
    assert why.startswith(f"the strategy has gone back 2 times from step {place} or before it, and that did not help")
    world.until_asked(2).answer(rollback("r4", epoch=1)).vote()
    tick_until(world, lambda: len(find(world, m.RolledBack)) == 3, "it went back")
    assert world.state.strategy.times_back == 1
    world.finish()
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_rollback_that_is_refused_voids_nothing():
    """There is no such checkpoint, so the other commands act."""
    world = StrategyWorld(0).until_asked().answer(adjust("a", eps=1e-6), rollback("r", epoch=7))
    until(world, 5)

    assert len(refusals(world)) == 1
    assert world.trainer.hyper == {"eps": 1e-6}


def test_a_pause_holds_the_run_until_an_operator_resumes_it():
    """At the boundary of this epoch's end, after the other orders of the answer."""
    world = (
        StrategyWorld(0).until_asked().answer(command(m.Pause(reason="look"), "p", "COMMAND_PAUSE"), adjust(eps=1e-6))
    )
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")

    assert (world.state.progress.step, world.trainer.hyper) == (4, {"eps": 1e-6})
    assert find(world, m.PauseRequested)[0].actor.program == "strategy"
    world.command(m.Resume())
    assert world.finish().state.run.phase is st.Phase.COMPLETED


def test_an_emergency_does_what_an_operator_s_does():
    """CRITICAL freezes the run; commands after it are void."""
    alarm = command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="it burns"), "e", "COMMAND_EMERGENCY")
    world = StrategyWorld(0).until_asked().answer(alarm, adjust(eps=1e-6))

    assert world.state.run.phase is st.Phase.FROZEN
    assert "it burns" in find(world, m.RunFrozen)[0].why
    assert len(refusals(world)) == 1


def test_a_breaker_is_opened_and_closed_with_its_reason():
    """An open one is a reason for conservative mode; closing it ends that reason; `lr` has its own slice."""
    world = (
        StrategyWorld(0)
        .until_asked()
        .answer(breaker("checkpoint", BreakerState.OPEN, "1"), breaker("lr", BreakerState.OPEN, "2"))
    )
    mono = world.mono
    assert world.state.overruns.open_breakers(mono) == ("checkpoint",)
    assert world.state.stability.breaker.opened is not None
    assert "checkpoint" in find(world, m.ConservativeModeEntered)[0].why
    assert [event.actor.reason for event in find(world, m.BreakerSet)] == ["noisy disk"] * 2
    world.until_asked(2).answer(
        breaker("checkpoint", BreakerState.CLOSED, "3"), breaker("lr", BreakerState.CLOSED, "4")
    )
    assert world.state.overruns.open_breakers(world.mono) == ()
    assert world.state.stability.breaker.opened is None


def test_in_conservative_mode_nothing_new_is_started():
    """A germination is refused with the reason for the mode; a lower rate is not."""
    world = StrategyWorld(0, slots=SLOTS).until_asked()
    world.answer(breaker("checkpoint", BreakerState.OPEN), seed(), adjust(eps=1e-6))

    (why,) = refusals(world)
    assert "conservative mode" in why
    until(world, 5)
    assert world.trainer.hyper == {"eps": 1e-6}


def test_at_most_sixteen_commands_of_an_answer_are_kept():
    """The state of a run is bounded, whatever an event holds."""
    world = StrategyWorld(0).until_asked().answer(*(adjust(f"o{n}", eps=1e-6) for n in range(20)))
    assert len(world.state.strategy.commands) == m.COMMANDS_MAX
