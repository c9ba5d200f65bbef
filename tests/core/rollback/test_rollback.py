"""Rollbacks through `decide`, without a process: targets, the three phases, branches, and every interruption."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.facts import EPOCHS
from tests.core.simulate import World, find, kinds, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.test_lifecycle import assert_every_begun_has_one_end, troubled
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.steps.branches import Branches, Fork
from tolariad.core.decision import Accepted
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.rules.table.decide import overdue

TOTAL = EPOCHS * STEPS_PER_EPOCH


def living_steps(world: World) -> list[int]:
    """The steps on the living line, in the order they were recorded."""
    branches = world.state.rollbacks.branches
    return [e.step for e in find(world, m.StepCompleted) if branches.holds_step(e.branch, e.step)]


def rolled_back(world: World, **how: object) -> World:
    """Order it and let it come to its end."""
    before = world.state.rollbacks.done
    assert isinstance(world.command(m.Rollback(**how)), Accepted)
    return tick_until(world, lambda: world.state.rollbacks.done > before, "a rollback that is done")


def test_a_rollback_is_ordered_prepared_committed_and_goes_on_to_the_end():
    """The events in their order, each the cause of the next; then the rest of the run, on branch 1."""
    world = rolled_back(until(World(0), 7), epoch=1)
    names = [name for name in kinds(world) if "Roll" in name]
    begun, prepared, done = (find(world, kind)[0] for kind in (m.RollbackBegun, m.RollbackPrepared, m.RolledBack))
    world.run()

    assert names == ["RollbackRequested", "RollbackBegun", "RollbackPrepared", "RolledBack"]
    assert (begun.from_step, begun.to_step, begun.why) == (7, 4, "")
    assert (done.branch, done.parent, done.step, done.epoch, done.batch) == (1, 0, 4, 2, 0)
    assert prepared.root == done.root == begun.root == find(world, m.RollbackRequested)[0].root
    assert world.state.run.phase is st.Phase.COMPLETED
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert {e.branch for e in find(world, m.StepCompleted) if e.step > 7} == {1}


def test_no_update_begins_between_prepare_and_the_end():
    """The gate is closed by the first event and opened by the last."""
    world = until(World(0), 6)
    world.command(m.Rollback(epoch=1))
    steps = len(find(world, m.StepCompleted))
    tick_until(world, lambda: find(world, m.RolledBack), "a rollback")

    assert len(find(world, m.StepCompleted)) == steps


@pytest.mark.parametrize(
    ("how", "step"), [({}, 4), ({"epoch": 1}, 4), ({"epoch": 0}, 0), ({"step": 4}, 4), ({"step": 3}, 0)]
)
def test_the_target_is_the_newest_checkpoint_at_or_before_what_was_asked(how, step):
    """By epoch, by step, or the newest of all."""
    world = rolled_back(until(World(0), 7), **how)

    assert find(world, m.RolledBack)[0].step == step


@pytest.mark.parametrize(
    ("how", "said"), [({"epoch": 3}, "epoch 3 is not reached yet"), ({"step": 8}, "step 8 is not reached yet")]
)
def test_a_place_that_is_not_reached_yet_is_refused_with_a_sentence(how, said):
    """A rollback only goes back; the sentence says where the run is. The present place is accepted."""
    world = until(World(0), 7)
    refused = world.command(m.Rollback(**how))

    assert isinstance(refused, m.Refusal)
    assert said in refused.why
    assert "the run is in epoch 2, at step 7" in refused.why
    assert not find(world, m.RollbackRequested)
    assert isinstance(world.command(m.Rollback(epoch=2)), Accepted)


def test_an_accepted_rollback_names_its_place_and_its_price():
    """Checkpoint, step, epoch and how many steps it gives up are in the event and in the sentence."""
    world = until(World(0), 7)
    world.command(m.Rollback(epoch=1))
    asked = find(world, m.RollbackRequested)[0]

    assert (asked.step, asked.epoch, asked.batch, asked.given_up) == (4, 2, 0, 3)
    assert sentence(asked) == (
        f"The run is to go back to {asked.checkpoint}: step 4, at the end of epoch 1, and gives up 3 steps, "
        "ordered by uid 1000."
    )


def test_what_cannot_be_gone_back_to_is_refused_by_name():
    """Unknown, abandoned, older than anything; and a run that is over."""
    world = rolled_back(until(World(0), 10), epoch=1)
    abandoned = next(one.id for one in world.state.checkpoints.catalogue if one.abandoned)
    unknown = world.command(m.Rollback(to="c999999"))
    behind = world.command(m.Rollback(to=abandoned))
    world.run()
    over = world.command(m.Rollback())

    assert isinstance(unknown, m.Refusal)
    assert unknown.error == "NotFound"
    assert isinstance(behind, m.Refusal)
    assert "abandoned" in behind.why
    assert isinstance(over, m.Refusal)
    assert over.error == "WrongPhase"


def test_a_crash_after_a_rollback_never_resumes_the_abandoned_future():
    """The next start trains from the target and runs only the new branch's steps again."""
    world = rolled_back(until(World(0), 11), epoch=1)
    until(world, 6)
    world.restart_daemon()
    world.run()

    assert [(e.first, e.last) for e in find(world, m.RerunBegun)] == [(5, 6)]
    assert find(world, m.RerunFinished)[-1].first_difference is None
    assert living_steps(world) == list(range(1, TOTAL + 1))


def assert_finished_though_dying(world: World, order: m.Rollback, acts: int, who: str) -> None:
    """A process dies so many acts after the order: the order has one end, and the run completes on one whole branch."""
    world.command(order)
    for _ in range(acts):
        world.tick()
    world.crash_trainer() if who == "trainer" else world.restart_daemon()
    world.run()

    assert_every_begun_has_one_end(world)
    assert len(find(world, m.RolledBack)) == 1
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.parametrize("acts", range(6))
@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_whoever_dies_amid_a_rollback_it_is_finished_by_the_next_start(acts, who):
    """At every point of the protocol: one end, the target's branch, and the run completes on it."""
    assert_finished_though_dying(until(World(0), 7), m.Rollback(epoch=1), acts, who)


def test_a_target_that_fails_its_verification_is_rejected_and_training_goes_on():
    """Aborted, the checkpoint never a target again, and nothing lost."""
    world = until(World(0), 7)
    world.break_newest()
    world.command(m.Rollback(epoch=1))
    world.run()

    assert len(find(world, m.RollbackAborted)) == 1
    assert find(world, m.CheckpointRejected)[0].id == find(world, m.RollbackBegun)[0].checkpoint
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("is_refused_first", [False, True])
def test_an_end_of_training_that_crosses_with_a_refused_rollback_is_the_runs_end_once(is_refused_first):
    """It is reported during the rollback or just after its refusal: one last checkpoint, and the run completes."""
    world = World(0)
    tick_until(world, lambda: world.state.progress.epoch_finished == EPOCHS - 1, "the last epoch")
    while not isinstance(report := None if world.due else world.trainer.act(world.state), m.TrainingEndedReport):
        if report is None:
            world.tick()
        else:
            world.give(m.ReportReceived(incarnation=1, report=report))
    world.break_newest()
    world.command(m.Rollback())
    refusal = world.trainer.act(world.state)
    assert isinstance(refusal, m.RollbackRefusedReport)
    for one in (refusal, report) if is_refused_first else (report, refusal):
        world.give(m.ReportReceived(incarnation=1, report=one))
    world.run()

    assert world.state.run.phase is st.Phase.COMPLETED
    assert [e.reason for e in find(world, m.CheckpointBegun)].count(m.CheckpointReason.END) == 1
    assert_every_begun_has_one_end(world)


def test_a_rollback_ordered_in_a_re_run_waits_for_its_end():
    """Recorded at once, begun when the script is over."""
    world = until(World(0), 7)
    world.restart_daemon()
    while world.state.progress.rerun is None:
        world.tick()
    answer = world.command(m.Rollback(epoch=0))
    world.run()
    names = kinds(world)

    assert isinstance(answer, Accepted)
    assert names.index("RollbackRequested") < names.index("RerunFinished") < names.index("RollbackBegun")
    assert find(world, m.RolledBack)[0].step == 0
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_paused_run_goes_back_and_stays_paused():
    """With a living trainer and without one."""
    for with_trainer in (True, False):
        world = until(World(0), 7)
        world.command(m.Pause())
        while world.state.run.phase is not st.Phase.PAUSED:
            world.tick()
        if not with_trainer:
            world.restart_daemon()
        rolled_back(world, epoch=1)
        for _ in range(20):
            world.tick()

        assert world.state.run.phase is st.Phase.PAUSED
        assert world.state.progress.step == 4
        world.command(m.Resume())
        world.run()
        assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_target_gone_back_to_twice_is_passed_over_and_then_the_run_halts():
    """Newest twice, the one before twice, then nothing is left but to stand still."""
    world = until(World(0), 7)
    targets = []
    for _ in range(5):
        world.command(m.RaiseEmergency(level=m.Level.SEVERE))
        for _ in range(6):
            world.tick()
        targets.append(world.state.progress.step if world.state.run.phase is not st.Phase.FROZEN else "halt")

    assert [e.to_step for e in find(world, m.RollbackBegun)] == [4, 4, 0, 0]
    assert world.state.run.phase is st.Phase.FROZEN


def test_disasters_and_rollbacks_together_end_on_one_whole_line(seed):
    """Forty drawn worlds: every begun thing has one end, and what completes has each step once on its living line."""
    completed = back = 0
    for offset in range(40):
        world = World(seed + offset, deaths_max=50)
        world.goes_back = True
        troubled(world)
        back += world.state.rollbacks.done
        if world.state.run.phase is st.Phase.COMPLETED:
            completed += 1
            assert living_steps(world) == list(range(1, TOTAL + 1)), f"seed {seed + offset}"
    print(f"{completed} of 40 completed, {back} rollbacks")
    assert completed >= 25
    assert back >= 10


def test_the_living_line_runs_through_every_fork():
    """Branch 2 from branch 1 at step 8, which came from branch 0 at step 5; then branch 3 from branch 0 at 3."""
    branches = Branches().forked(Fork(1, 0, 5, 2, 1, 50)).forked(Fork(2, 1, 8, 2, 4, 90))
    further = branches.forked(Fork(3, 0, 3, 1, 3, 120))

    assert [
        branches.holds_step(0, 5),
        branches.holds_step(0, 6),
        branches.holds_step(1, 8),
        branches.holds_step(1, 9),
    ] == [*(True, False, True, False)]
    assert branches.holds_step(2, 10**9)
    assert [further.holds_step(branch, 4) for branch in range(4)] == [False, False, False, True]
    assert further.holds_step(0, 3)


def test_stopping_and_a_rollback_do_not_hinder_each_other():
    """A stop amid a rollback ends the run at the target."""
    world = until(World(0), 7)
    world.command(m.Rollback(epoch=1))
    world.command(m.Stop(mode=m.StopMode.GRACEFUL))
    world.run()

    assert world.state.run.phase is st.Phase.STOPPED
    assert_every_begun_has_one_end(world)
    world.restart_daemon()
    world.run()
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_rollback_that_is_not_done_in_time_halts_the_run_and_the_next_start_finishes_it():
    """Thirty seconds after training stood still for it, and not sooner; how long that took is not counted."""
    world = until(World(0), 7)
    world.command(m.Rollback(epoch=1))
    late = m.Now(0, world.mono + 10**12)
    assert overdue(world.state, late) is None, "nobody has heard of it"
    opened = world.state.rollbacks.open
    world.give(m.ReportReceived(incarnation=1, report=m.RollbackHeardReport(rollback=opened.id)))
    heard = find(world, m.RollbackHeard)[0].mono
    in_time, given = (overdue(world.state, m.Now(0, heard + ns)) for ns in (30 * 10**9 - 1, 30 * 10**9))
    world.give(given)
    frozen, why = world.state.run.phase, world.state.run.why
    for _ in range(10):
        world.tick()
    assert overdue(world.state, late) is None
    steps = len(find(world, m.StepCompleted))
    world.command(m.Resume())
    world.run()

    assert in_time is None
    assert (frozen, steps) == (st.Phase.FROZEN, 7)
    assert "30 s after training stood still" in why
    assert [e.by_start for e in find(world, m.RolledBack)] == [True]
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert world.give(given) is None
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_larger_model_has_more_time():
    """The deadline is for one of 1 B parameters; ten times as many have ten times as long."""
    world = until(World(0), 7)
    world.command(m.Rollback(epoch=1))
    opened = world.state.rollbacks.open
    world.give(m.ReportReceived(incarnation=1, report=m.RollbackHeardReport(rollback=opened.id)))
    heard = find(world, m.RollbackHeard)[0].mono
    large = replace(world.state, overruns=replace(world.state.overruns, parameters=10**10))

    assert overdue(world.state, m.Now(0, heard + 200 * 10**9)) is not None
    assert overdue(large, m.Now(0, heard + 299 * 10**9)) is None
    assert overdue(large, m.Now(0, heard + 301 * 10**9)) is not None
