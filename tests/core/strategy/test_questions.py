"""When the strategy is asked, and what becomes of its answer, its silence and its state."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.boundary.test_orders import acted
from tests.core.simulate import find, take_checkpoint, tick_until, until, until_found
from tests.core.strategy.asked import SLOTS, StrategyWorld, command
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.health.histogram import quantile
from tolariad.core.rules.table.decide import overdue
from tolariad.core.state.run_state import RunState, canonical_bytes, fold
from tolariad.telemetry.histograms import BudgetHistograms

DECAY = m.AdjustOptimizer(values={"weight_decay": 0.5})


def epochs_asked(world):
    return [event.epoch for event in find(world, m.StrategyAsked)]


@pytest.mark.parametrize(
    ("strategy", "slots", "asked"),
    [
        ("none", SLOTS, []),
        ("auto", (), []),
        ("auto", SLOTS, [1, 2]),
        ("default", (), [1, 2]),
        ("./own.py:Own", (), [1, 2]),
    ],
)
def test_who_has_a_strategy_is_asked_after_each_epoch_but_the_last(strategy, slots, asked):
    """The default policy acts by itself only on slots; a run without a strategy has no event and no effect of one."""
    world = StrategyWorld(0, strategy=strategy, slots=slots).finish()

    assert epochs_asked(world) == asked
    assert world.continued() == [1, 2, 3]
    assert world.state.run.phase is st.Phase.COMPLETED
    if not asked:
        assert (world.state.boundary.generations, world.questions) == (0, [])


def test_training_waits_for_the_answer_and_its_orders_come_before_continue():
    """State, then orders in their order, then Continue; they act before the next step, caused by their command."""
    world = StrategyWorld(0).until_asked()
    for _ in range(5):
        world.tick()
    assert (world.continued(), q.gate_open(world.state)) == ([], False)
    before = len(world.sent)
    world.answer(command(m.AdjustOptimizer(values={"lr": 0.05, "eps": 1e-6}), "c1"), state=b"one")

    names = [type(effect).__name__ for effect in world.sent[before:]]
    assert names == ["KeepStrategyState", "SetRate", "SetRate", "SetRate", "SetHyperparameters", "Continue"]
    assert q.gate_open(world.state)
    (commanded,) = find(world, m.StrategyCommanded)
    root = {event.root for event in (*find(world, m.OrderGiven), commanded)}
    assert len(root) == 1
    world.finish()
    assert [kind for _, step, kind in acted(world) if step == 5] == [
        "KeepStrategyState",
        *["SetRate"] * 3,
        "SetHyperparameters",
    ]
    assert world.trainer is None or world.trainer.hyper == {"eps": 1e-6}
    assert world.state.strategy.kept == b"one"


def test_an_answer_without_commands_costs_one_event_and_no_order():
    """The state did not change either, so there is no order for it."""
    world = StrategyWorld(0).until_asked().answer(spans=m.StrategySpans(assembly=0.001, answer=0.002))
    (answered,) = find(world, m.StrategyAnswered)

    assert (answered.epoch, answered.commands, answered.spans.answer) == (1, (), 0.002)
    assert find(world, m.OrderGiven) == []
    assert world.continued() == [1]


@pytest.mark.parametrize("seen_by", ["daemon", "kernel"])
def test_without_an_answer_in_time_nothing_changes_and_it_counts_as_a_failure(seen_by):
    """The reason is an annotation; one failure of its breaker; training goes on. The kernel looks too."""
    world = StrategyWorld(0).until_asked()
    if seen_by == "daemon":
        world.give(m.StrategyOverdue(generation=1))
    else:
        assert overdue(world.state, m.Now(0, world.mono + 1_900_000_000)) is None
        late = overdue(world.state, m.Now(0, world.mono + 2_000_000_000))
        assert late == m.StrategyOverdue(generation=1)
        world.give(late)
    (end,) = find(world, m.StrategyTimedOut)

    assert (end.reason, end.epoch, end.fallback) == (m.NoAnswer.LATE, 1, "it did not answer in 2 s")
    assert world.state.overruns.breakers["strategy_deadline"].failures == 1
    assert world.continued() == [1]
    assert world.state.said.troubles["StrategyTimedOut"].count == 1


def test_a_late_answer_is_void_and_recorded_as_such():
    """Its commands and its state have no effect, whenever it comes; an answer to a question never asked is nothing."""
    world = StrategyWorld(0).until_asked()
    world.give(m.StrategyOverdue(generation=1))
    late = m.StrategyReply(
        generation=1, commands=(command(DECAY, "c1"),), state=b"late", spans=m.StrategySpans(answer=3)
    )
    world.give(late)
    world.until_asked(2)
    world.give(late)
    events = len(world.events)
    world.give(m.StrategyReply(generation=9, commands=(command(DECAY, "c2"),)))
    assert len(world.events) == events
    assert world.questions[-1].state == b""
    world.finish()

    voided = [(event.generation, event.commands, event.seconds) for event in find(world, m.StrategyAnswerVoided)]
    assert voided == [(1, 1, 3.0)] * 2
    assert find(world, m.StrategyCommanded) == []
    assert world.state.strategy.kept == b""


def test_a_strategy_that_fails_is_not_asked_while_its_breaker_is_open():
    """Three failures in a row open it, which is conservative mode; after its rest one question heals it."""
    world = StrategyWorld(0, epochs=5)
    for epoch in (1, 2, 3):
        world.until_asked(epoch).answer(fallback="it raised KeyError")
    assert [end.reason for end in find(world, m.StrategyTimedOut)] == [m.NoAnswer.FAILED] * 3
    assert "strategy_deadline" in find(world, m.ConservativeModeEntered)[0].why
    tick_until(world, lambda: world.state.progress.epoch_finished >= 4, "epoch 4")
    assert world.continued() == [1, 2, 3, 4]
    assert epochs_asked(world) == [1, 2, 3]

    again = StrategyWorld(0, epochs=5)
    for epoch in (1, 2, 3):
        again.until_asked(epoch).answer(fallback="it raised KeyError")
    again.mono += 31 * 10**9
    again.until_asked(4).answer(spans=m.StrategySpans(answer=0.001))
    assert "strategy_deadline" not in again.state.overruns.breakers


def test_slow_parts_are_overruns_of_their_budgets():
    """Each part of the boundary has its row; a message of another version is a failure of the serializer's breaker."""
    world = StrategyWorld(0).until_asked()
    world.answer(spans=m.StrategySpans(assembly=0.004, encoding=1e-4, answer=0.013, check=0.002), misread=1)
    names = [event.budget for event in find(world, m.BudgetExceeded)]

    assert names == ["state_assembly", "serialization", "strategy_answer", "boundary_check"]
    # The whole boundary is judged; a slow part of it is only recorded.
    assert {name: one.failures for name, one in world.state.overruns.breakers.items()} == {"serialization": 2}


def test_the_wait_for_a_processor_in_a_part_is_no_overrun_and_a_late_answer_is_late_by_the_clock():
    """Each part took a second, of which it ran for a tenth of its budget. The deadline knows no such wait."""
    waits = m.StrategyWaits(assembly=0.99965, encoding=0.999992, answer=2.4988, check=0.9999)
    spans = m.StrategySpans(assembly=1.0, encoding=1.0, answer=2.5, check=1.0, waits=waits)
    world = StrategyWorld(0).until_asked()
    before = world.state.overruns
    world.answer(spans=spans)
    (answered,) = find(world, m.StrategyAnswered)
    histograms = BudgetHistograms(before)
    histograms.add(answered)
    histogram = histograms.by_budget["strategy_answer"]

    assert [event.budget for event in find(world, m.BudgetExceeded)] == ["strategy_deadline"]
    assert set(world.state.overruns.breakers) == {"strategy_deadline"}
    assert histogram.worst == pytest.approx(1.2)
    assert quantile(histogram.clock, 0.5) == pytest.approx(2500, rel=0.07)
    assert quantile(histogram.waits, 0.5) == pytest.approx(2499, rel=0.07)
    assert histograms.by_budget["strategy_deadline"].clock == ()


@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_a_question_that_a_death_left_open_is_asked_again_before_the_next_update(who):
    """The undisturbed run's orders act at the same step, and it keeps the same state, as if nobody had died."""
    undisturbed = StrategyWorld(0).until_asked(2).answer(command(DECAY, "c1"), state=b"two").finish()
    world = StrategyWorld(0).until_asked(2)
    if who == "trainer":
        world.crash_trainer()
        tick_until(world, lambda: find(world, m.StrategyTimedOut), "the question's end")
    else:
        world.restart_daemon()
    assert world.state.boundary.asked is None
    world.until_asked(2)
    for _ in range(60):
        world.tick()
    step = world.state.progress.step
    assert (step, q.gate_open(world.state)) == (8, False)
    world.answer(command(DECAY, "c1"), state=b"two").finish()

    assert [end.reason for end in find(world, m.StrategyTimedOut)] == [m.NoAnswer.OVERTAKEN]
    assert epochs_asked(world) == [1, 2, 2]
    assert acted(world) == acted(undisturbed)
    assert world.state.boundary.digest == undisturbed.state.boundary.digest
    assert world.state.progress.digest == undisturbed.state.progress.digest
    assert world.state.strategy.kept == b"two"
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_a_death_after_the_answer_loses_no_order_and_asks_nobody_again(who):
    """Orders that had not acted are sent to the next trainer; the others are in the script of its re-run."""
    world = StrategyWorld(0, checkpoint_every_epochs=100).until_asked(1)
    world.answer(command(DECAY, "c1"), state=b"one")
    if who == "trainer":
        world.crash_trainer()
    else:
        world.restart_daemon()
    until(world, 6)
    world.crash_trainer()
    until_found(world, m.RerunFinished)
    until(world, 7)

    assert epochs_asked(world) == [1]
    assert [kind for _, _, kind in acted(world)] == ["KeepStrategyState", "SetHyperparameters"]
    assert (world.trainer.kept, world.trainer.hyper) == (b"one", {"weight_decay": 0.5})
    script = [(one.number, one.before_step, type(one.order).__name__) for one in world.trainer.script_orders]
    assert script == [(1, 5, "KeepStrategyState"), (2, 5, "SetHyperparameters")]


def test_a_rollback_closes_the_question_and_takes_the_state_back():
    """The answer of the branch that was left is void; the new branch asks anew, with the state of the target."""
    world = StrategyWorld(0)
    world.until_asked(1).answer(state=b"one")
    tick_until(world, lambda: world.state.progress.epoch_started == 2, "epoch 2")
    take_checkpoint(world)
    target = tick_until(
        world,
        lambda: world.state.checkpoints.catalogue[-1].step >= 4 and not world.state.checkpoints.open,
        "a checkpoint",
    ).state.checkpoints.catalogue[-1]
    world.until_asked(2)
    world.command(m.Rollback(to=target.id))
    assert world.state.boundary.asked is None
    assert world.votes[-1].state == world.pieces[target.id][0] == b"one"
    world.vote()
    world.give(m.StrategyReply(generation=2, commands=(command(DECAY, "c1"),), state=b"two"))
    until_found(world, m.RolledBack)
    assert world.state.strategy.kept == b"one"
    world.until_asked(2)
    assert world.questions[-1].state == b"one"
    world.finish()

    assert [event.reason for event in find(world, m.StrategyTimedOut)] == [m.NoAnswer.OVERTAKEN]
    assert find(world, order_events.acted(m.SetHyperparameters)) == []
    assert [event.generation for event in find(world, m.StrategyAsked)] == [1, 2, 3]


def test_a_state_that_a_rollback_left_behind_is_not_kept():
    """Its order was given, but the run went back before it acted: training is not at that epoch's end any more."""
    world = StrategyWorld(0)
    tick_until(world, lambda: world.state.checkpoints.catalogue, "the first checkpoint")
    world.until_asked(1)
    world.answer(state=b"one")
    world.command(m.Rollback(step=0))
    # Both are under way; the trainer finds the older order only after it has gone back.
    orders = world.trainer.orders
    late = next(one for one in orders if isinstance(one, m.KeepStrategyState))
    orders.remove(late)
    world.vote()
    until_found(world, m.RolledBack)
    orders.append(late)
    until(world, 2)

    assert len(find(world, order_events.aborted(m.KeepStrategyState))) == 1
    assert world.state.strategy.kept == b""
    world.until_asked(1)
    assert world.questions[-1].state == b""


def test_nobody_is_asked_during_a_stop():
    """The trainer is on its way out: its answer could not act."""
    world = StrategyWorld(0)
    until(world, 3)
    world.command(m.Pause())
    world.command(m.Stop())
    world.run()
    assert find(world, m.StrategyAsked) == []


def test_whatever_happens_each_question_has_one_end_and_nobody_waits_for_ever(seed):
    """Twenty drawn worlds with deaths, rollbacks, votes and answers; the fold of the journal is the state."""
    questions = kept = 0
    for offset in range(20):
        world = StrategyWorld(seed + offset, slots=SLOTS, deaths_max=50)
        world.goes_back = True
        for turn in range(300):
            if world.random.random() < 0.3:
                generation = world.random.randrange(world.state.boundary.generations + 2)
                fallback = "broken" if world.random.random() < 0.2 else ""
                commands = () if fallback else (command(DECAY, f"c{world.random.randrange(30)}"),)
                state = b"%d" % turn
                world.give(m.StrategyReply(generation=generation, commands=commands, state=state, fallback=fallback))
            if world.votes and world.random.random() < 0.7:
                world.vote(world.random.choice(list(m.Vote)))
            world.anything()
            trainer = world.trainer
            idle = trainer is not None and not (trainer.orders or trainer.todo or trainer.later or world.due)
            idle = idle and trainer.order is not None and not trainer.script and not world.state.boundary.waiting
            # Not before the ends of epochs are repeated too.
            if idle and trainer.done_epoch >= world.state.progress.epoch_finished:
                assert trainer.kept == world.state.strategy.kept, f"seed {seed + offset}"
                kept += trainer.kept != b""
        asked = [event.generation for event in find(world, m.StrategyAsked)]
        closed = [event.generation for event in find(world, m.BoundaryClosed)]
        assert asked == list(range(1, len(asked) + 1)), f"seed {seed + offset}"
        still_open = world.state.boundary.asked
        assert sorted(closed) == asked[: -1 if still_open else None], f"seed {seed + offset}"
        assert (world.state.strategy.asked is None) == (still_open is None), f"seed {seed + offset}"
        assert canonical_bytes(fold(RunState(), world.events)) == canonical_bytes(world.state)
        questions += len(asked)
    print(f"{questions} questions, {kept} moments with a kept state")
    assert questions >= 20
    assert kept >= 20
