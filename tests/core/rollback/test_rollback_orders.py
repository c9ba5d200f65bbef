"""Orders beside a rollback or an emergency: another order, or the same order repeated, changes nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import World, find, kinds, tick_until, until
from tests.core.snapped import SnappedWorld
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict


def noted(world):
    """The effects from here on, in their order."""
    effects, plain = [], world._do

    def do(effect):
        effects.append(effect)
        plain(effect)

    world._do = do
    return effects


def given(world, report):
    world.give(m.ReportReceived(incarnation=world.state.trainer.incarnation, report=report))


def ordered(world):
    """A world in which a checkpoint was just ordered after step 6."""
    until(world, 6)
    world.command(m.Checkpoint())
    assert world.state.checkpoints.open
    return world


@pytest.mark.parametrize(("how", "step"), [({"epoch": 0}, 0), ({}, 4)])
def test_what_is_being_written_is_given_up_beyond_the_target_before_the_rollback_is_prepared(how, step):
    """Where anything is; by the target's step, so that what lies before it is finished."""
    world, idle = ordered(World(0)), until(World(0), 7)
    for one in (world, idle):
        effects = noted(one)
        one.command(m.Rollback(**how))
        orders = [(type(e), getattr(e, "beyond_step", None)) for e in effects]
        prepare = (m.PrepareRollback, None)
        assert orders == ([(m.AbortCheckpoints, step), prepare] if one is world else [prepare])


def test_what_is_being_written_is_given_up_anew_when_the_full_tier_goes_further_back():
    """The snapshot's step was later than the checkpoint's that takes its place."""
    world = ordered(SnappedWorld(0))
    world.damage()
    snapshot = world.state.snapshots.promoted[-1]
    world.trainer.orders.pop()
    effects = noted(world)
    world.command(m.Rollback(tier=m.Tier.FAST))
    tick_until(world, lambda: find(world, m.RollbackEscalated), "the full tier")

    assert [e.beyond_step for e in effects if isinstance(e, m.AbortCheckpoints)] == [snapshot.step, 0]
    assert snapshot.step > 0


def test_a_word_of_another_rollback_or_one_said_twice_changes_nothing():
    """Each phase, under an id that is not the open one's, and the end once more after the end."""
    world = until(World(0), 7)
    world.command(m.Rollback(epoch=1))
    open_id = world.state.rollbacks.open.id

    def said(rollback):
        return (
            m.RollbackHeardReport(rollback=rollback),
            m.RollbackPreparedReport(rollback=rollback, participants=("training",), seconds=0.1),
            m.RolledBackReport(rollback=rollback, step=4, commit_s=0.1, confirm_s=0.1),
            m.RollbackRefusedReport(rollback=rollback, file="model", why="it is damaged"),
        )

    effects, before = noted(world), kinds(world)
    for report in said("r0000"):
        given(world, report)
    assert (kinds(world), effects) == (before, [])
    tick_until(world, lambda: find(world, m.RolledBack), "a rollback")
    effects.clear()
    before = kinds(world)
    for report in said(open_id):
        given(world, report)

    assert (kinds(world), effects) == (before, [])
    assert world.state.rollbacks.branches.living == 1


def test_a_snapshot_whose_step_was_found_unhealthy_while_it_was_taken_is_none():
    """Found a step late: it has its end, and nobody can go back to it or start from it."""
    world = SnappedWorld(0)
    tick_until(world, lambda: world.state.snapshots.open, "a snapshot")
    world.trainer._obey()
    report = next(one for one in world.trainer.todo if isinstance(one, m.SnapshotTakenReport))
    world.trainer.todo.remove(report)
    verdict = Verdict(finding=Finding.SPIKE, signal=Signal.LOSS, value=9.0, baseline=1.0, limit=2.0)
    at = {"step": report.step, "epoch": report.epoch, "batch": report.batch, "first_batch": report.batch}
    given(world, m.InstabilityReport(verdict=verdict, late=True, **at))
    given(world, report)

    assert world.state.snapshots.kept == ()
    assert [e.why for e in find(world, m.SnapshotAborted)] == [f"step {report.step} was not healthy"]


@pytest.mark.parametrize("ticks", [0, 9])
@pytest.mark.parametrize("mode", list(m.StartMode))
def test_a_signal_ends_the_daemon_and_not_the_halt(ticks, mode):
    """Every kind of next start finds the run frozen and gives the reason, whether or not the trainer has ended."""
    world = until(World(0), 6)
    world.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"))
    for _ in range(ticks):
        world.tick()
    effects = noted(world)
    world.give(m.SignalReceived(name="SIGTERM", count=1))
    assert world.exit == 143
    assert [type(e) for e in effects] == [*([] if ticks else [m.KillTrainer]), m.ExitDaemon]
    world.restart_daemon(mode)
    for _ in range(40):
        world.tick()
    stood = (world.state.run.phase, world.state.run.why, world.state.progress.step, world.state.trainer.alive)
    world.command(m.Resume())
    world.run()

    assert stood == (st.Phase.FROZEN, "smoke", 6, False)
    assert world.state.run.phase is st.Phase.COMPLETED


def test_an_operator_who_resumes_has_seen_the_emergency():
    """Its level is over with that order, not with an epoch that comes later."""
    world = until(World(0), 6)
    world.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"))
    for _ in range(9):
        world.tick()
    assert world.state.emergency.level is m.Level.CRITICAL
    world.command(m.Resume())

    assert (world.state.emergency.level, world.state.emergency.raised) == (None, 1)


def test_a_stop_by_an_operator_ends_the_halt_too():
    """A run that was stopped by command and started again trains."""
    world = until(World(0), 6)
    world.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"))
    for _ in range(9):
        world.tick()
    world.command(m.Stop(mode=m.StopMode.GRACEFUL))
    assert (world.state.run.phase, world.exit) == (st.Phase.STOPPED, 0)
    world.restart_daemon()
    world.run()

    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_lesser_emergency_lowers_neither_the_level_nor_its_reason():
    """The graver one stands, with why, until a healthy epoch; a still graver one takes its place."""
    world = until(World(0), 6)
    for level in (m.Level.SEVERE, m.Level.MINOR, m.Level.MAJOR):
        world.command(m.RaiseEmergency(level=level, reason=level.value))
    at_first = world.state.emergency
    world.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"))

    assert (at_first.level, at_first.why, at_first.raised) == (m.Level.SEVERE, "severe", 3)
    assert (world.state.emergency.level, world.state.emergency.why) == (m.Level.CRITICAL, "smoke")


@pytest.mark.parametrize(("tier", "every"), [(m.Tier.FAST, 1), (m.Tier.FULL, 1), (m.Tier.FULL, 0)])
def test_no_snapshot_after_the_fork_outlives_a_rollback_and_no_other_one_of_the_target_s_place(tier, every):
    """Otherwise the next trainer would start from the abandoned branch, or from another state of that step."""
    world = until(SnappedWorld(0, snapshot_every=every), 7)
    if every:
        tick_until(world, lambda: not world.state.snapshots.kept[-1].promoted, "a newer one")
    had = world.state.snapshots.kept
    world.command(m.Rollback(tier=tier))
    tick_until(world, lambda: find(world, m.RolledBack), "a rollback")
    done = find(world, m.RolledBack)[0]
    kept, fork = world.state.snapshots.kept, (done.step, done.epoch, done.batch)
    assert [one for one in had if one.position >= fork and one.id != done.checkpoint], "none was there to go"
    assert all(one.position < fork or one.id == done.checkpoint for one in kept)
    world.crash_trainer()
    world.run()

    assert find(world, m.TrainingStarted)[-1].checkpoint == done.checkpoint
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("is_restored", [False, True])
def test_where_nothing_is_left_to_go_back_to_a_half_restored_trainer_is_ended_and_a_whole_one_goes_on(is_restored):
    """The snapshot is no good and no checkpoint is: what was overwritten is not trained on."""
    world = until(SnappedWorld(0), 7)
    world.command(m.Rollback(tier=m.Tier.FAST))
    held = world.state.checkpoints
    rejected = tuple(replace(one, rejected=True) for one in held.catalogue)
    world.state = replace(world.state, checkpoints=replace(held, catalogue=rejected))
    effects, open_id = noted(world), world.state.rollbacks.open.id
    given(world, m.RollbackRefusedReport(rollback=open_id, file="m", why="differs", restored=is_restored))

    # The whole one is all there is now: another checkpoint at once.
    assert [type(e) for e in effects] == ([m.KillTrainer] if is_restored else [m.AbortRollback, m.TakeCheckpoint])
    assert [e.rollback for e in find(world, m.RollbackAborted)] == [open_id]


@pytest.mark.parametrize(
    "order",
    [m.RaiseEmergency(level=m.Level.MAJOR), m.RaiseEmergency(level=m.Level.SEVERE), m.Rollback()],
    ids=["major", "severe", "unnamed"],
)
@pytest.mark.parametrize("is_rerun", [False, True])
def test_where_the_newest_cannot_be_used_an_order_that_named_none_goes_on_to_the_next_older_one(order, is_rerun):
    """Under the same id: whoever raised an emergency must not be left with the state it was raised for."""
    world = until(World(0), 7)
    if is_rerun:
        world.crash_trainer()
        tick_until(world, lambda: world.state.progress.rerun is not None, "a re-run")
    world.break_newest()
    world.command(order)
    tick_until(world, lambda: world.state.rollbacks.done, "a rollback that is done")
    (begun,), (escalated,), (done,) = (find(world, k) for k in (m.RollbackBegun, m.RollbackEscalated, m.RolledBack))

    assert [begun.to_step, escalated.to_step, done.step] == [4, 0, 0]
    assert {begun.rollback, escalated.rollback, done.rollback} == {"r0001"}
    assert "is damaged" in escalated.why
    assert find(world, m.RollbackAborted) == []
    world.run()
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("how", ["to", "epoch", "step"])
def test_where_a_place_was_named_no_other_stands_for_it(how):
    """The place decides what is lost, so no other is taken. Training goes on, and the next order takes the next older
    place.
    """
    world = until(World(0), 7)
    newest = world.state.checkpoints.newest
    named = {how: {"to": newest.id, "epoch": 1, "step": 5}[how]}
    world.break_newest()
    world.command(m.Rollback(**named))
    tick_until(world, lambda: find(world, m.RollbackAborted), "a rollback that is given up")

    assert find(world, m.RollbackEscalated) == find(world, m.RolledBack) == []
    assert world.state.run.phase is st.Phase.RUNNING
    assert world.state.progress.step >= 7


@pytest.mark.parametrize("order", [m.RaiseEmergency(level=m.Level.MAJOR), m.Rollback()], ids=["major", "unnamed"])
def test_where_none_can_be_used_an_emergency_halts_the_run_and_an_order_to_go_back_is_given_up(order):
    """The same follows if there was none from the beginning. Only an operator may continue after an emergency."""
    world = until(World(0), 7)
    world.broken.update(one.id for one in world.state.checkpoints.catalogue)
    world.command(order)
    tick_until(world, lambda: find(world, m.RollbackAborted), "a rollback that is given up")

    is_emergency = isinstance(order, m.RaiseEmergency)
    assert (world.state.run.phase is st.Phase.FROZEN) == is_emergency
    assert not is_emergency or "r0001: model.safetensors: it is damaged" in world.state.run.why
    assert len(find(world, m.RollbackEscalated)) == 1
    if not is_emergency:
        # The gate does not close on what lives and is all there is; what can be used is had again as soon as may be.
        assert world.state.checkpoints.open
        world.run()
        assert world.state.run.phase is st.Phase.COMPLETED
        assert living_steps(world) == list(range(1, TOTAL + 1))
