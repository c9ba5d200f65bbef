"""`tolaria extend`: another end of the training is accepted or refused at every moment, and it survives deaths."""

from __future__ import annotations

import pytest

from tests.core.facts import EPOCHS, daemon_started
from tests.core.simulate import World, find, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.test_lifecycle import troubled
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.decision import Accepted
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.state.run_state import RunState, fold

STEPS = EPOCHS * STEPS_PER_EPOCH


def completed(world: World) -> tuple[int, int]:
    """Step and epochs of the one end that the run came to."""
    (event,) = find(world, m.RunCompleted)
    assert world.state.run.phase is st.Phase.COMPLETED
    assert fold(RunState(), world.events) == world.state
    return event.step, event.epochs


@pytest.mark.parametrize(
    ("order", "end"),
    [
        (m.Extend(epochs=5), (20, 5)),
        (m.Extend(epochs=2), (8, 2)),
        (m.Extend(steps=6), (6, 1)),
        (m.Extend(steps=14), (14, 3)),
        (m.Extend(steps=16), (16, 4)),
    ],
    ids=lambda one: "",
)
def test_the_training_ends_where_it_was_ordered(order, end):
    """Later or earlier than configured, and after epochs or steps; the status shows it at once."""
    world = World(0)
    until(world, 2)
    assert isinstance(world.command(order), Accepted)
    assert q.steps_in_all(world.state) == (order.steps or order.epochs * STEPS_PER_EPOCH)
    world.run()
    assert completed(world) == end


@pytest.mark.sample(2)
@pytest.mark.parametrize("order", [m.Extend(epochs=4), m.Extend(steps=14)], ids=["epochs", "steps"])
@pytest.mark.parametrize("then", ["nothing", "the trainer dies", "the daemon dies"])
def test_at_every_moment_it_counts_or_is_refused(order, then):
    """The run may end while the order is in flight: a report that crosses the order changes nothing."""
    calm = World(0)
    ticks = 0
    while calm.exit is None:
        calm.tick()
        ticks += 1
    answers = set()
    for place in range(1, ticks):
        world = World(0)
        for _ in range(place):
            world.tick()
        # Reports that the trainer has sent already arrive after the order.
        crossing = world.trainer.act(world.state) if world.trainer is not None and not world.due else None
        answer = world.command(order)
        if crossing is not None and then != "the daemon dies":
            world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=crossing))
        if then == "the trainer dies" and world.trainer is not None:
            world.crash_trainer()
        if then == "the daemon dies" and world.exit is None:
            world.restart_daemon()
        world.run()
        expected = (order.steps or 16, 3 if order.steps else 4) if isinstance(answer, Accepted) else (STEPS, EPOCHS)
        assert completed(world) == expected, (place, answer)
        answers.add(type(answer))
    assert answers == {Accepted, m.Refusal}


def test_an_end_that_has_passed_is_refused_with_the_place():
    """The sentence names the present epoch and step, and nothing is recorded."""
    world = World(0)
    until(world, 6)
    events = len(world.events)
    for order, said in [
        (m.Extend(epochs=1), "the end of epoch 1 has passed: the run is in epoch 2, at step 6;"),
        (m.Extend(steps=6), "step 6 has passed: the run is in epoch 2, at step 6;"),
        (m.Extend(), "give the last epoch or the last step, and one of them only"),
        (m.Extend(epochs=4, steps=14), "give the last epoch or the last step, and one of them only"),
    ]:
        answer = world.command(order)
        assert isinstance(answer, m.Refusal)
        assert answer.error == "Refused"
        assert answer.why.startswith(said)
    assert len(world.events) == events
    assert isinstance(world.command(m.Extend(steps=7)), Accepted)
    world.run()
    assert completed(world) == (7, 1)


def test_a_complete_run_says_how_it_goes_on():
    """And so does one whose last checkpoint is being written."""
    world = World(0)
    while not world.state.checkpoints.is_ending:
        world.tick()
    ending = world.command(m.Extend(epochs=9))
    world.run()
    complete = world.command(m.Extend(epochs=9))
    assert (ending.error, complete.error) == ("Refused", "WrongPhase")
    assert "has come to its end, at step 12" in ending.why
    assert complete.why.startswith("the run is complete: 3 epochs, 12 steps; `tolariad run --dir RUN --epochs N`")


def test_while_the_run_is_paused_the_trainer_hears_of_it():
    """It stands at a boundary, and goes on to the new end when it is released."""
    world = World(0)
    until(world, 5)
    world.command(m.Pause())
    while world.state.run.phase is not st.Phase.PAUSED:
        world.tick()
    assert isinstance(world.command(m.Extend(steps=world.state.progress.step + 1)), Accepted)
    world.command(m.Resume())
    world.run()
    assert completed(world) == (6, 1)


def test_in_a_rollback_and_after_it_the_end_stands():
    """The order is not of the steps that are given up."""
    world = World(0)
    until(world, 9)
    world.command(m.Rollback(epoch=1))
    assert world.state.run.phase is st.Phase.ROLLING_BACK
    assert isinstance(world.command(m.Extend(epochs=2)), m.Refusal)
    assert isinstance(world.command(m.Extend(epochs=4)), Accepted)
    world.run()
    assert find(world, m.RolledBack)
    assert completed(world) == (16, 4)


def test_the_last_order_counts():
    """Back to the configured end, and to another one."""
    world = World(0)
    until(world, 2)
    for order in (m.Extend(epochs=5), m.Extend(steps=10), m.Extend(epochs=EPOCHS)):
        assert isinstance(world.command(order), Accepted)
    world.run()
    assert completed(world) == (STEPS, EPOCHS)
    assert not find(world, m.LimitReached)
    ends = [(one.epochs, one.steps, one.former_epochs, one.former_steps) for one in find(world, m.EndOrdered)]
    assert ends == [(5, None, 3, None), (None, 10, 5, None), (3, None, None, 10)]


def test_an_earlier_end_is_the_cause_of_the_limit():
    """`tolaria why` leads from the end of the run to the order."""
    world = World(0)
    until(world, 2)
    answer = world.command(m.Extend(epochs=2))
    world.run()
    (reached,) = find(world, m.LimitReached)
    assert (reached.limit, reached.cause) == (m.Limit.EPOCHS, answer.seq)


def test_hours_that_are_used_up_stay_used_up():
    """No other epoch gives the run more of them."""
    world = World(0, stop_hours=4e6 / (3600 * 10**9))
    while world.state.limits.reached is None:
        world.tick()
    answer = world.command(m.Extend(epochs=9))
    assert isinstance(answer, m.Refusal)
    assert "stop.hours" in answer.why


def test_whatever_is_ordered_and_whoever_dies_the_steps_are_those_of_the_last_end(seed):
    """Twenty disturbed runs with many orders: each ends where an undisturbed run ends that had the last end from the
    start.
    """
    completed_runs = ends = 0
    for offset in range(20):
        world = World(seed + offset, deaths_max=50)

        def order(world: World = world) -> None:
            if world.random.random() < 0.1:
                end = {"epochs": world.random.randrange(1, 6)} if world.random.random() < 0.5 else {}
                world.command(m.Extend(**(end or {"steps": world.random.randrange(1, 21)})))

        troubled(world, order)
        if world.state.run.phase is not st.Phase.COMPLETED:
            continue
        end = world.state.limits.end
        calm = World(0)
        if end is not None:
            calm.command(m.Extend(epochs=end.epochs, steps=end.steps))
        calm.run()
        assert world.state.progress.digest == calm.state.progress.digest, f"seed {seed + offset}"
        assert completed(world) == completed(calm), f"seed {seed + offset}"
        completed_runs, ends = completed_runs + 1, ends + (end is not None)
    print(f"{completed_runs} of 20 disturbed runs completed, {ends} with an end that was ordered")
    assert min(completed_runs, ends) >= 10


def test_resume_does_not_revive_a_complete_run():
    """The run does not reach a pause that was ordered during its last checkpoint; only a later end continues it."""
    world = World(0)
    while not world.state.checkpoints.is_ending:
        world.tick()
    world.command(m.Pause())
    while world.state.run.phase is not st.Phase.COMPLETED:
        world.tick()
    assert world.command(m.Resume()).error == "WrongPhase"
    world.run()
    assert completed(world) == (STEPS, EPOCHS)


def changed(keys: tuple[str, ...], **policy: object) -> m.ConfigChanged:
    """Another configuration, as a start brings it."""
    return m.ConfigChanged(config="{}", config_hash="dd", policy=m.Policy(checkpoint_gap_s=0.0, **policy), keys=keys)


def reopened(world: World, *facts: m.ConfigChanged, mode: m.StartMode = m.StartMode.EXPLICIT) -> None:
    """A new daemon on a run whose daemon has ended."""
    world.trainer, world.exit = None, None
    world.due.clear()
    world.give(m.Opened(mode=mode, facts=(daemon_started(), *facts)))


@pytest.mark.parametrize(
    "ordered", [None, m.Extend(epochs=2), m.Extend(steps=6)], ids=["configured", "epochs", "steps"]
)
def test_a_complete_run_goes_on_with_more_epochs(ordered):
    """As an event; from its last checkpoint, and to the new end. Without more to do it stays complete."""
    world = World(0)
    until(world, 2)
    if ordered is not None:
        world.command(ordered)
    world.run()
    first = completed(world)
    reopened(world)
    assert (world.exit, world.state.run.phase) == (0, st.Phase.COMPLETED)
    reopened(world, changed(("epochs",), epochs=5))
    assert world.state.run.phase is st.Phase.RECOVERING
    assert [one.origin for one in find(world, m.RunResumed)] == [m.Origin.START]
    world.run()
    assert [(one.step, one.epochs) for one in find(world, m.RunCompleted)] == [first, (20, 5)]
    assert find(world, m.RerunFinished) == []


def test_another_configured_end_replaces_an_ordered_one_and_other_keys_do_not():
    """The newest word counts."""
    world = World(0)
    until(world, 2)
    world.command(m.Extend(epochs=5))
    reopened(world, changed(("checkpoint.keep_last",), epochs=3))
    assert q.last_epoch(world.state) == 5
    reopened(world, changed(("epochs",), epochs=4))
    assert q.last_epoch(world.state) == 4


def test_a_start_by_the_socket_waits_although_there_is_more_to_do():
    """It answers; the next explicit start goes on."""
    world = World(0)
    world.run()
    reopened(world, changed(("epochs",), epochs=5), mode=m.StartMode.ACTIVATED)
    assert (world.exit, world.state.run.phase) == (None, st.Phase.COMPLETED)
    reopened(world)
    world.run()
    assert find(world, m.RunCompleted)[-1].epochs == 5


def with_rates(policy: LRPolicy) -> RunState:
    """A state with one group whose curve was computed for three epochs."""
    schedule = Schedule(policy=policy, base_lr=0.1, min_lr=0.001, total_steps=STEPS, decay_steps=4)
    world = World(0)
    until(world, 2)
    return fold(world.state, [m.LrGroupsRegistered(groups=(Group("default", schedule),))])


@pytest.mark.parametrize(
    ("policy", "order", "said"),
    [
        (LRPolicy.HOST_COSINE, m.Extend(epochs=5), "default (host_cosine) stays at 0.001 after step 12"),
        (LRPolicy.WSD, m.Extend(steps=99), "default (wsd) stays at 0.001 after step 12"),
        (LRPolicy.LINEAR, m.Extend(epochs=1), "default (linear) ends at 0.073 instead of 0.001"),
        (LRPolicy.LINEAR, m.Extend(steps=12), "do not depend on it"),
        (LRPolicy.CONSTANT, m.Extend(epochs=5), "do not depend on it"),
    ],
)
def test_the_answer_says_what_the_rates_will_do(policy, order, said):
    """They keep the curves that they were computed with."""
    assert said in q.rates_until(with_rates(policy), order.epochs, order.steps)


def test_the_order_in_words():
    """One or two sentences, which the command prints."""
    event = m.EndOrdered(epochs=30, former_steps=460, rates="Learning rates do not depend on it.")
    assert (
        sentence(event) == "The training ends after epoch 30 instead of step 460. Learning rates do not depend on it."
    )
    assert sentence(m.EndOrdered(steps=9, former_steps=9)) == "The training ends after step 9."
