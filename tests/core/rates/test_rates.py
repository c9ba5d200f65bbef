"""Orders of rates through `decide`: durable first, effective at one step, repeated in re-runs, checked at each step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests import order_events
from tests.core import simulated_trainer
from tests.core.rated import GROUPS, RatedWorld
from tests.core.simulate import find, kinds, tick_until, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.learning_rate.group import Group, rate_of
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.decision import Accepted


def test_an_order_is_recorded_acts_at_the_next_boundary_and_says_where():
    """RateOrdered with the actor, then RateChanged of the same chain, then a step the kernel found right."""
    world = until(RatedWorld(0), 5)
    answer = world.lr_set("body", 0.03, reason="noisy")
    assert isinstance(answer, Accepted)
    world.run()

    ordered, changed = find(world, order_events.given(m.SetRate))[0], find(world, order_events.acted(m.SetRate))[0]
    assert (ordered.actor.reason, ordered.order.value) == ("noisy", 0.03)
    assert (changed.cause, changed.root, changed.applied_before_step) == (answer.seq, answer.seq, 6)
    assert changed.outcome.before == rate_of(GROUPS[0], 5)
    step = next(event for event in find(world, m.StepCompleted) if event.step == 6)
    assert step.lr == 0.03
    assert world.events.index(ordered) < world.events.index(changed) < world.events.index(step)
    assert find(world, m.LrViolationDetected) == []
    assert world.state.rates.changes["body"].reason == "noisy"


@pytest.mark.sample(15)
@pytest.mark.parametrize("offset", range(60))
def test_disasters_change_nothing_of_an_order(seed, offset):
    """With drawn orders, kills, pauses and restarts every order acts once at most, at one step. No step has another
    rate.
    """
    world = RatedWorld(seed + offset, deaths_max=50, checkpoint_every_epochs=2)
    for _ in range(250):
        world.anything()
    while world.state.run.phase not in (st.Phase.COMPLETED, st.Phase.FAILED):
        world.exit = None
        world.restart_daemon()
        world.command(m.Resume())
        world.run()

    ended = [
        event.cause
        for event in (*find(world, order_events.acted(m.SetRate)), *find(world, order_events.aborted(m.SetRate)))
    ]
    accepted = [seq for seq, event in enumerate(world.events, 1) if isinstance(event, order_events.given(m.SetRate))]
    assert len(ended) == len(set(ended))
    assert set(accepted) - set(ended) == {order.cause.seq for order in world.state.boundary.waiting}
    assert set(ended) <= set(accepted)
    assert find(world, m.LrViolationDetected) == []
    groups, applied = max(world.saved.items())[1]
    if world.state.run.phase is st.Phase.COMPLETED and applied == world.state.boundary.acted:
        assert world.state.rates.groups == groups


def test_an_order_before_the_first_checkpoint_is_not_lost_with_its_trainer():
    """It acts in the first trainer, which dies before there is a checkpoint; the next one has it from the journal."""
    world = RatedWorld(0)
    tick_until(world, lambda: find(world, m.LrGroupsRegistered), "LrGroupsRegistered")
    world.lr_set("head", 0.01)
    tick_until(world, lambda: find(world, order_events.acted(m.SetRate)), "RateChanged")
    assert world.state.checkpoints.newest is None or world.state.progress.step == 0
    world.crash_trainer()
    world.run()

    assert find(world, order_events.acted(m.SetRate))[0].applied_before_step == 1
    assert len(find(world, order_events.acted(m.SetRate))) == 1
    assert find(world, m.LrViolationDetected) == []
    assert world.state.run.phase is st.Phase.COMPLETED


def test_an_order_whose_trainer_died_first_goes_to_the_next():
    """Accepted, sent, never reported: it acts in the next trainer, once."""
    world = until(RatedWorld(0), 6)
    world.lr_set("head", 0.01)
    world.crash_trainer()
    world.run()

    assert [event.order.value for event in find(world, order_events.acted(m.SetRate))] == [0.01]
    assert find(world, order_events.acted(m.SetRate))[0].applied_before_step == 7
    assert find(world, m.LrViolationDetected) == []


@pytest.mark.parametrize(
    ("group", "value", "policy", "error", "why"),
    [
        ("nobody", 0.1, None, "NotFound", "there are body, head, seed, still"),
        ("head", 0.5, None, "Refused", "at most 10-fold"),
        ("head", -1.0, None, "Refused", "a number from 0 to 1e+06"),
        ("head", float("inf"), None, "Refused", "a number from 0 to 1e+06"),
        ("still", 0.01, None, "Refused", "still is frozen; --policy"),
    ],
)
def test_an_order_that_cannot_be_is_refused_with_the_reason(group, value, policy, error, why):
    """And leaves no trace."""
    world = until(RatedWorld(0), 5)
    before = len(world.events)
    answer = world.lr_set(group, value, policy)

    assert isinstance(answer, m.Refusal)
    assert answer.error == error
    assert why in answer.why
    assert len(world.events) == before


def test_a_frozen_group_is_thawed_by_a_policy_and_the_cap_can_be_lifted():
    """Its base rate is the measure while its rate is 0."""
    world = until(RatedWorld(0), 5)
    assert isinstance(world.lr_set("still", 0.2, LRPolicy.CONSTANT), m.Refusal)
    assert isinstance(world.lr_set("still", 0.1, LRPolicy.CONSTANT), Accepted)
    free = until(RatedWorld(0, max_order_factor=0.0), 5)
    assert isinstance(free.lr_set("head", 500.0), Accepted)


def test_an_order_is_measured_by_those_before_it():
    """Two of ten-fold in one go are two orders; the second one starts at the rate of the first."""
    world = until(RatedWorld(0), 5)
    assert isinstance(world.lr_set("head", 0.2), Accepted)
    assert isinstance(world.lr_set("head", 2.0), Accepted)
    assert isinstance(world.lr_set("head", 2.0e-3), m.Refusal)


def test_orders_that_wait_are_bounded():
    """A trainer that does not come to its boundary must not fill the state."""
    world = until(RatedWorld(0), 5)
    answers = [world.lr_set("head", 0.02) for _ in range(st.WAITING_MAX + 1)]
    assert all(isinstance(answer, Accepted) for answer in answers[:-1])
    assert isinstance(answers[-1], m.Refusal)


def test_a_run_that_has_ended_takes_no_order():
    """WrongPhase, as of every order."""
    world = RatedWorld(0)
    world.run()
    answer = world.lr_set("head", 0.01)
    assert isinstance(answer, m.Refusal)
    assert answer.error == "WrongPhase"


def test_a_repeated_id_gets_the_first_answer():
    """The rate is ordered once."""
    world = until(RatedWorld(0), 5)
    assert world.lr_set("head", 0.01, id="x") == world.lr_set("head", 0.015, id="x")
    assert len(find(world, order_events.given(m.SetRate))) == 1


def test_a_plateau_is_an_event_and_lowers_the_rate_from_the_next_step():
    """The metric stands in the epoch's own event, so that folding alone comes to the same."""
    world = RatedWorld(0)
    world.run()
    reached = find(world, m.PlateauReached)
    assert [(event.group, event.rate) for event in reached] == [("seed", 0.025), ("seed", 0.0125)]
    assert {event.metric for event in reached} == {"host_loss"}
    assert find(world, m.LrViolationDetected) == []


def test_groups_that_come_while_training_are_checked_like_the_others():
    """From the step on that is named; a rebuild stands in the journal as it was told."""
    world = until(RatedWorld(0), 5)
    grown = Group("new", Schedule(policy=LRPolicy.CONSTANT, base_lr=0.004, total_steps=12))
    groups = (*world.trainer.groups, grown)
    counts = m.RebuildCounts(carried=4, added=1)
    told = m.OptimizerRebuildCommitted(optimizer="host", counts=counts, elapsed_ms=1.5)
    for report in (m.RebuildReport(told=told), m.Told(event=m.LrGroupsChanged(applied_before_step=6, groups=groups))):
        world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    world.trainer.groups = groups
    assert isinstance(world.lr_set("new", 0.002), Accepted)
    world.run()

    (committed,) = find(world, m.OptimizerRebuildCommitted)
    assert (committed.counts, committed.elapsed_ms) == (counts, 1.5)
    assert [event.applied_before_step for event in find(world, m.LrGroupsChanged)] == [6]
    assert find(world, order_events.acted(m.SetRate))[0].outcome.before == 0.004
    assert find(world, m.LrViolationDetected) == []
    assert [group.name for group in world.state.rates.groups][-1] == "new"


def test_an_epoch_without_a_metric_holds_the_rates_and_is_told_once(monkeypatch):
    """No validation loss and not one applied step: there is nothing that a plateau could be judged by."""
    for epoch in (2, 3):
        monkeypatch.setitem(simulated_trainer.BATCHES, epoch, "-----")
    world = RatedWorld(0)
    world.run()

    assert [(event.epoch, event.groups) for event in find(world, m.PlateauUnjudged)] == [(2, ("seed",))]
    assert [event.metric for event in find(world, m.EpochFinished)] == [pytest.approx(25 / 48), None, None]
    assert find(world, m.PlateauReached) == []
    assert max(world.saved.items())[1][0] == world.state.rates.groups
    assert world.state.run.phase is st.Phase.COMPLETED


# -- the kernel's check and conservative mode --------------------------------------------------------------------------


def tamper(world, steps):
    """Let the trainer report steps whose digest is not that of the journal's rates."""
    for _ in range(steps):
        until(world, world.state.progress.step)
        report = None
        while not isinstance(report, m.StepReport):
            assert world.trainer is not None
            report = world.trainer.act(world.state)
            if report is not None and not isinstance(report, m.StepReport):
                world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
        wrong = replace(report, rates=report.rates ^ 1)
        world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=wrong))


def test_a_digest_that_differs_is_a_violation_the_kernel_found():
    """The step is recorded, and the violation after it: the trainer does not decide the rates of the journal."""
    world = until(RatedWorld(0), 2)
    tamper(world, 1)
    assert kinds(world)[-2:] == ["StepCompleted", "LrViolationDetected"]
    assert world.state.stability.total == 1


def test_three_violations_make_the_run_conservative_and_healthy_epochs_and_time_end_it():
    """Entered once, with the reason; left after three epochs without one, not before five minutes are over."""
    world = until(RatedWorld(0), 1)
    tamper(world, 3)
    entered = find(world, m.ConservativeModeEntered)
    assert [event.why for event in entered] == ["open breaker: lr"]
    assert world.state.stability.conservative
    tamper(world, 1)
    assert len(find(world, m.ConservativeModeEntered)) == 1

    stability = replace(world.state.stability, in_epoch=0, healthy_epochs=2)
    world.state = replace(world.state, stability=stability)
    early = until(world, 8)
    while early.state.progress.epoch_finished < 2:
        early.tick()
    assert early.state.stability.conservative
    world.mono += 301 * 10**9
    world.run()
    assert len(find(world, m.ConservativeModeLeft)) == 1
    assert not world.state.stability.conservative
