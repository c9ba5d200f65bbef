"""Orders of rates through `decide`: durable first, acting at one step, repeated there; the kernel's own check of each step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.rated import GROUPS, RatedWorld
from tests.core.simulate import find, kinds, until
from tolariad.core.decision import Accepted, Refusal
from tolariad.core.inputs import ReportReceived
from tolariad.core.learning_rate import LRPolicy, rate_of
from tolariad.core.rates import PENDING_MAX
from tolariad.core.run import Phase
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import learning_rate as lv
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary import run as rv
from tolariad.core.vocabulary import stability as stv
from tolariad.core.vocabulary import steps as sv


def test_an_order_is_recorded_acts_at_the_next_boundary_and_says_where():
    """RateOrdered with the actor, then RateChanged of the same chain, then a step the kernel found right."""
    world = until(RatedWorld(0), 5)
    answer = world.lr_set("body", 0.03, reason="noisy")
    assert isinstance(answer, Accepted)
    world.run()

    ordered, changed = find(world, lv.RateOrdered)[0], find(world, lv.RateChanged)[0]
    assert (ordered.actor.reason, ordered.value) == ("noisy", 0.03)
    assert (changed.cause, changed.root, changed.applied_before_step) == (answer.seq, answer.seq, 6)
    assert changed.before == rate_of(GROUPS[0], 5)
    step = next(event for event in find(world, sv.StepCompleted) if event.step == 6)
    assert step.lr == 0.03
    assert world.events.index(ordered) < world.events.index(changed) < world.events.index(step)
    assert find(world, lv.LrViolationDetected) == []
    assert world.state.rates.changes["body"].reason == "noisy"


@pytest.mark.parametrize("offset", range(60))
def test_disasters_change_nothing_of_an_order(seed, offset):
    """Drawn orders, kills, pauses and restarts: every order acts at most once, at one step; no step has another rate."""
    world = RatedWorld(seed + offset, deaths_max=50, checkpoint_every_epochs=2)
    for _ in range(250):
        world.anything()
    while world.state.run.phase not in (Phase.COMPLETED, Phase.FAILED):
        world.exit = None
        world.restart_daemon()
        world.command(cv.Resume())
        world.run()

    ended = [event.cause for event in (*find(world, lv.RateChanged), *find(world, lv.RateOrderAborted))]
    accepted = [seq for seq, event in enumerate(world.events, 1) if isinstance(event, lv.RateOrdered)]
    assert len(ended) == len(set(ended))
    assert set(accepted) - set(ended) == {order.cause.seq for order in world.state.rates.pending}
    assert set(ended) <= set(accepted)
    assert find(world, lv.LrViolationDetected) == []
    groups, applied = max(world.saved.items())[1]
    if world.state.run.phase is Phase.COMPLETED and applied == world.state.rates.acted:
        assert world.state.rates.groups == groups


def test_an_order_before_the_first_checkpoint_is_not_lost_with_its_trainer():
    """It acts in the first trainer, which dies before there is a checkpoint; the next one has it from the journal."""
    world = RatedWorld(0)
    while not find(world, lv.LrGroupsRegistered):
        world.tick()
    world.lr_set("head", 0.01)
    while not find(world, lv.RateChanged):
        world.tick()
    assert world.state.checkpoints.newest is None or world.state.progress.step == 0
    world.crash_trainer()
    world.run()

    assert find(world, lv.RateChanged)[0].applied_before_step == 1
    assert len(find(world, lv.RateChanged)) == 1
    assert find(world, lv.LrViolationDetected) == []
    assert world.state.run.phase is Phase.COMPLETED


def test_an_order_whose_trainer_died_first_goes_to_the_next():
    """Accepted, sent, never reported: it acts in the next trainer, once."""
    world = until(RatedWorld(0), 6)
    world.lr_set("head", 0.01)
    world.crash_trainer()
    world.run()

    assert [event.rate for event in find(world, lv.RateChanged)] == [0.01]
    assert find(world, lv.RateChanged)[0].applied_before_step == 7
    assert find(world, lv.LrViolationDetected) == []


@pytest.mark.parametrize(
    ("group", "value", "policy", "error", "why"),
    [
        ("nobody", 0.1, None, "NotFound", "there are body, head, seed, still"),
        ("head", 0.5, None, "Refused", "at most 10-fold"),
        ("head", -1.0, None, "Refused", "a number from 0 on"),
        ("head", float("inf"), None, "Refused", "a number from 0 on"),
        ("still", 0.01, None, "Refused", "still is frozen; --policy"),
    ],
)
def test_an_order_that_cannot_be_is_refused_with_the_reason(group, value, policy, error, why):
    """And leaves no trace."""
    world = until(RatedWorld(0), 5)
    before = len(world.events)
    answer = world.lr_set(group, value, policy)

    assert isinstance(answer, Refusal)
    assert answer.error == error
    assert why in answer.why
    assert len(world.events) == before


def test_a_frozen_group_is_thawed_by_a_policy_and_the_cap_can_be_lifted():
    """Its base rate is the measure while its rate is 0."""
    world = until(RatedWorld(0), 5)
    assert isinstance(world.lr_set("still", 0.2, LRPolicy.CONSTANT), Refusal)
    assert isinstance(world.lr_set("still", 0.1, LRPolicy.CONSTANT), Accepted)
    free = until(RatedWorld(0, max_order_factor=0.0), 5)
    assert isinstance(free.lr_set("head", 500.0), Accepted)


def test_an_order_is_measured_by_those_before_it():
    """Two of ten-fold in one go are two orders; the second one starts where the first will be."""
    world = until(RatedWorld(0), 5)
    assert isinstance(world.lr_set("head", 0.2), Accepted)
    assert isinstance(world.lr_set("head", 2.0), Accepted)
    assert isinstance(world.lr_set("head", 2.0e-3), Refusal)


def test_orders_that_wait_are_bounded():
    """A trainer that does not come to its boundary must not fill the state."""
    world = until(RatedWorld(0), 5)
    answers = [world.lr_set("head", 0.02) for _ in range(PENDING_MAX + 1)]
    assert all(isinstance(answer, Accepted) for answer in answers[:-1])
    assert isinstance(answers[-1], Refusal)


def test_a_run_that_has_ended_takes_no_order():
    """WrongPhase, as of every order."""
    world = RatedWorld(0)
    world.run()
    answer = world.lr_set("head", 0.01)
    assert isinstance(answer, Refusal)
    assert answer.error == "WrongPhase"


def test_a_repeated_id_gets_the_first_answer():
    """The rate is ordered once."""
    world = until(RatedWorld(0), 5)
    assert world.lr_set("head", 0.01, id="x") == world.lr_set("head", 0.015, id="x")
    assert len(find(world, lv.RateOrdered)) == 1


def test_a_plateau_is_an_event_and_lowers_the_rate_from_the_next_step():
    """The metric stands in the epoch's own event, so that folding alone comes to the same."""
    world = RatedWorld(0)
    world.run()
    reached = find(world, lv.PlateauReached)
    assert [(event.group, event.rate) for event in reached] == [("seed", 0.025), ("seed", 0.0125)]
    assert {event.metric for event in reached} == {"host_loss"}
    assert find(world, lv.LrViolationDetected) == []


# -- the kernel's check and conservative mode ------------------------------------------------------------------------------


def tamper(world, steps):
    """Let the trainer report steps whose digest is not that of the journal's rates."""
    for _ in range(steps):
        until(world, world.state.progress.step)
        report = None
        while not isinstance(report, sv.StepReport):
            assert world.trainer is not None
            report = world.trainer.act(world.state)
            if report is not None and not isinstance(report, sv.StepReport):
                world.give(ReportReceived(incarnation=world.trainer.incarnation, report=report))
        wrong = replace(report, rates=report.rates ^ 1)
        world.give(ReportReceived(incarnation=world.trainer.incarnation, report=wrong))


def test_a_digest_that_differs_is_a_violation_the_kernel_found():
    """The step stands, and the violation behind it; the rates of the journal are not the trainer's to say."""
    world = until(RatedWorld(0), 2)
    tamper(world, 1)
    assert kinds(world)[-2:] == ["StepCompleted", "LrViolationDetected"]
    assert world.state.stability.total == 1


def test_three_violations_make_the_run_conservative_and_healthy_epochs_and_time_end_it():
    """Entered once, with the reason; left after three epochs without one, not before five minutes are over."""
    world = until(RatedWorld(0), 1)
    tamper(world, 3)
    entered = find(world, stv.ConservativeModeEntered)
    assert [event.why for event in entered] == ["open breaker: lr"]
    assert world.state.stability.conservative
    tamper(world, 1)
    assert len(find(world, stv.ConservativeModeEntered)) == 1

    stability = replace(world.state.stability, in_epoch=0, healthy_epochs=2)
    world.state = replace(world.state, stability=stability)
    early = until(world, 8)
    while early.state.progress.epoch_finished < 2:
        early.tick()
    assert early.state.stability.conservative
    world.mono += 301 * 10**9
    world.run()
    assert len(find(world, stv.ConservativeModeLeft)) == 1
    assert not world.state.stability.conservative


# -- behind a rollback -----------------------------------------------------------------------------------------------------


def gone_back(world, **how):
    """Order it and let it come to its end; a trainer trains again."""
    world.command(rb.Rollback(**how))
    until_found(world, rb.RolledBack)
    while not world.trainer or not world.state.trainer.began:
        world.tick()
    return world


def until_found(world, kind):
    before = len(find(world, kind))
    for _ in range(200):
        if len(find(world, kind)) > before:
            return
        world.tick()
    raise AssertionError(kinds(world)[-10:])


def test_a_checkpoint_before_an_epoch_s_recorded_end_misses_no_order_behind_it():
    """Taken between a start there and that end: it does not hold the order, and says so; the next start repeats it."""
    world = until(RatedWorld(0, checkpoint_every_epochs=2), 4)
    until_found(world, sv.EpochFinished)
    world.lr_set("head", 0.01)
    until_found(world, lv.RateChanged)
    assert world.state.progress.step == 4
    world.crash_trainer()
    until_found(world, ck.RerunFinished)
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    taken = world.state.checkpoints.newest
    world.crash_trainer()
    world.run()

    begun = find(world, ck.CheckpointBegun)[1]
    assert (taken.epoch, taken.step, taken.orders, begun.orders) == (1, 4, 0, 1)
    assert taken.script_from < taken.begun_seq
    assert find(world, ck.TrainingStarted)[2].checkpoint == taken.id
    assert find(world, lv.LrViolationDetected) == []
    assert [event.applied_before_step for event in find(world, lv.RateChanged)] == [5]
    assert world.state.run.phase is Phase.COMPLETED


def test_an_order_that_waits_acts_once_although_the_checkpoint_to_start_from_is_refused():
    """The trainer has it already when it is told to start from an older one."""
    world = until(RatedWorld(0), 6)
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    world.crash_trainer()
    world.broken.add(world.state.checkpoints.newest.id)
    world.lr_set("head", 0.01)
    until_found(world, ck.CheckpointRejected)
    world.run()

    assert [event.number for event in find(world, lv.RateChanged)] == [1]
    assert max(world.saved.items())[1] == (world.state.rates.groups, 1)


@pytest.mark.parametrize("epoch_ended", [False, True])
def test_a_rollback_whose_target_is_refused_at_the_start_ends_with_the_target_s_rates(epoch_ended):
    """An older checkpoint begins; what lay between is repeated, the target's orders among it and none behind it."""
    world = until(RatedWorld(0), 2)
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    older = world.state.checkpoints.newest
    world.lr_set("head", 0.01)
    until_found(world, lv.RateChanged)
    if epoch_ended:
        until_found(world, sv.EpochFinished)
        world.lr_set("body", 0.05)
        while len(find(world, lv.RateChanged)) < 2:
            world.tick()
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    target = world.state.checkpoints.newest
    world.lr_set("head", 0.04)
    until(world, 7)
    if not epoch_ended:
        # The newest epoch's end has one of its own.
        world.broken.update(one.id for one in world.state.checkpoints.catalogue if one.step > target.step)
    else:
        world.broken.update(one.id for one in world.state.checkpoints.catalogue if one.step >= 4)
    held, orders = world.saved[target.id]
    world.command(rb.Rollback(to=target.id))
    world.crash_trainer()
    world.broken.add(target.id)
    until_found(world, lv.RatesRestored)

    (started,) = [event for event in find(world, ck.TrainingStarted) if event.rates_owed]
    assert started.checkpoint == older.id
    assert orders == 1 + epoch_ended
    assert (world.state.rates.groups, world.state.rates.acted) == (held, orders)
    assert not world.state.rates.stale
    world.run()
    assert find(world, lv.LrViolationDetected) == []
    assert world.state.run.phase is Phase.COMPLETED


@pytest.mark.parametrize("who", ["nobody", "trainer", "daemon"])
def test_a_rollback_takes_back_what_was_ordered_behind_its_target_and_the_count_of_it(who):
    """By a living trainer or by the next start: rates and count are the target's, here and in the trainer."""
    world = until(RatedWorld(0), 6)
    world.lr_set("head", 0.01)
    until_found(world, lv.RateChanged)
    world.command(rb.Rollback(epoch=1))
    if who == "trainer":
        world.crash_trainer()
    elif who == "daemon":
        world.restart_daemon()
    until_found(world, rb.RolledBack) if who == "nobody" else until_found(world, ck.TrainingStarted)
    count, applied = world.state.rates.acted, world.trainer.applied
    world.lr_set("head", 0.04)
    world.run()

    assert (count, applied) == (0, 0)
    assert [event.number for event in find(world, lv.RateChanged)] == [1, 1]
    assert find(world, lv.LrViolationDetected) == []
    assert world.state.run.phase is Phase.COMPLETED


def test_an_order_at_a_checkpoint_s_own_boundary_outlives_a_start_although_the_run_went_back_once():
    """It acted behind the checkpoint and before any step: the next trainer has it from the script, nothing takes it back."""
    world = until(gone_back(until(RatedWorld(0), 6), epoch=1), 6)
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    step = world.state.progress.step
    assert world.state.checkpoints.newest.step == step
    world.command(cv.Pause())
    world.lr_set("head", 0.01)
    until_found(world, lv.RateChanged)
    assert world.state.progress.step == step
    world.restart_daemon()
    world.command(cv.Resume())
    world.run()

    assert [group.scale.value for group in world.state.rates.groups if group.name == "head"] == [0.01]
    assert find(world, lv.LrViolationDetected) == []


def test_a_checkpoint_of_the_target_s_step_that_holds_a_later_order_is_abandoned():
    """Two of one step, an order between them: behind a rollback to the first, the second is never a start."""
    world = until(RatedWorld(0), 6)
    world.command(cv.Pause())
    until_found(world, rv.RunPaused)
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    first = world.state.checkpoints.newest
    world.lr_set("head", 0.01)
    until_found(world, lv.RateChanged)
    world.command(cv.Checkpoint())
    until_found(world, ck.CheckpointCommitted)
    second = world.state.checkpoints.newest
    world.command(rb.Rollback(to=first.id))
    until_found(world, rb.RolledBack)
    world.restart_daemon()
    world.command(cv.Resume())
    world.run()

    assert first.step == second.step
    assert find(world, ck.TrainingStarted)[-1].checkpoint == first.id
    assert find(world, lv.LrViolationDetected) == []
    assert world.state.rates.acted == 0


def test_disasters_rollbacks_and_orders_of_rates_together_leave_one_set_of_rates(seed):
    """Forty drawn worlds: no step is ever made at rates that the journal does not lead to, and counts agree."""
    orders = back = 0
    for offset in range(40):
        world = RatedWorld(seed + offset, deaths_max=50)
        world.goes_back = True
        for _ in range(300):
            if world.exit is not None:
                break
            world.anything()
        world.restart_daemon()
        world.command(cv.Resume())
        world.run()
        assert find(world, lv.LrViolationDetected) == [], f"seed {seed + offset}"
        orders += len(find(world, lv.RateChanged))
        back += world.state.rollbacks.done
    print(f"{orders} orders acted, {back} rollbacks")
    assert orders >= 40
    assert back >= 10
