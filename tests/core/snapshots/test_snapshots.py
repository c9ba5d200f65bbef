"""Snapshots and the fast tier through `decide`: when one is taken and kept, which one is used, and every failure."""

from __future__ import annotations

import pytest

from tests.core.rollback.test_rollback import TOTAL, assert_finished_though_dying, living_steps, rolled_back
from tests.core.simulate import find, kinds, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.snapped import SIZE, SnappedWorld
from tests.core.test_lifecycle import assert_every_begun_has_one_end, troubled
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.decision import Accepted

FAST = m.Tier.FAST


def test_the_ring_is_opened_once_a_size_is_known_and_every_snapshot_has_one_end():
    """Size, memory, then one after another; the run is what it is without them."""
    world = SnappedWorld(0)
    world.run()
    opened = find(world, m.SnapshotRingOpened)

    assert [(e.slots, e.slot_bytes) for e in opened] == [(3, SIZE)]
    assert len(find(world, m.SnapshotTaken)) > 5
    assert_every_begun_has_one_end(world)
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.parametrize(("slots", "policy"), [(1, {}), (3, {"snapshot_slots": 1}), (0, {})])
def test_with_less_than_two_slots_the_fast_tier_is_off_with_an_event_and_rollbacks_are_full(slots, policy):
    """Memory for one, or a configuration for one."""
    world = rolled_back(until(SnappedWorld(0, slots, **policy), 7), tier=FAST)

    assert len(find(world, m.FastTierDisabled)) == 1
    assert find(world, m.SnapshotBegun) == []
    assert find(world, m.RollbackBegun)[0].tier is m.Tier.FULL


def test_one_is_taken_at_each_epochs_end_where_no_other_cadence_is_said():
    """Beside the first, which is taken as soon as there is memory."""
    world = SnappedWorld(0, snapshot_every=0)
    world.run()

    taken = [(e.step, e.batch) for e in find(world, m.SnapshotTaken)]
    assert taken[1:] == [(STEPS_PER_EPOCH, 0), (2 * STEPS_PER_EPOCH, 0)]


def test_a_snapshot_is_promoted_after_healthy_steps_and_an_unhealthy_one_begins_the_watch_anew():
    """Two steps after its own, or two after the unhealthy step if there was one."""
    world = until(SnappedWorld(0, snapshot_every=100), 3)
    first = world.state.snapshots.kept[0]
    verdict = Verdict(finding=Finding.SPIKE, signal=Signal.LOSS, value=9.0, baseline=1.0, limit=2.0)
    found = m.InstabilityReport(verdict=verdict, step=3, epoch=1, batch=4, first_batch=4, late=True)
    world.give(m.ReportReceived(incarnation=1, report=found))
    before = {"step": world.state.progress.step, "promoted": first.promoted}
    until(world, 4)
    at_four = world.state.snapshots.kept[0].promoted
    until(world, 5)

    assert (before, at_four, world.state.snapshots.kept[0].promoted) == ({"step": 3, "promoted": False}, False, True)


def test_the_newest_promoted_and_the_next_to_be_are_never_overwritten(seed):
    """At every order: the slot held neither, however many slots there are."""
    for slots in (2, 3, 4):
        world = SnappedWorld(seed, slots, snapshot_watch=3)
        for _ in range(400):
            state, seen = world.state.snapshots, len(world.events)
            world.tick()
            for begun in (e for e in world.events[seen:] if isinstance(e, m.SnapshotBegun)):
                watched = [one for one in state.kept if not one.promoted]
                assert begun.slot not in {one.slot for one in (*state.promoted[-1:], *watched[:1])}
        assert find(world, m.SnapshotPromoted), "none was ever promoted"


def test_the_fast_tier_goes_back_to_the_newest_promoted_snapshot():
    """The branch begins after the snapshot's step. Later snapshots are gone, and the run completes."""
    world = until(SnappedWorld(0), 7)
    newest = world.state.snapshots.promoted[-1]
    rolled_back(world, tier=FAST)
    begun, done = find(world, m.RollbackBegun)[0], find(world, m.RolledBack)[0]

    assert (begun.checkpoint, begun.tier, done.step, done.by_start) == (newest.id, FAST, newest.step, False)
    assert all(one.position <= newest.position for one in world.state.snapshots.kept)
    world.run()
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize(("how", "limit"), [({"step": 4}, 4), ({"step": 3}, 3)])
def test_the_fast_tier_honours_what_was_asked(how, limit):
    """The newest promoted one at or before it, or the full tier's if there is none."""
    world = rolled_back(until(SnappedWorld(0), 7), tier=FAST, **how)
    done = find(world, m.RolledBack)[0]

    assert done.step <= limit
    assert done.checkpoint == find(world, m.RollbackBegun)[0].checkpoint


@pytest.mark.parametrize("when", ["prepared", "restored"])
def test_what_memory_cannot_give_the_full_tier_does_under_the_same_id(when):
    """Damage is found at PREPARE or only at CONFIRM: it is rejected, and the newest older checkpoint is used."""
    world = until(SnappedWorld(0), 7)
    damaged = world.damage(when=when)
    rolled_back(world, tier=FAST)
    escalated, done = find(world, m.RollbackEscalated)[0], find(world, m.RolledBack)[0]
    ids = {e.rollback for e in (*find(world, m.RollbackBegun), escalated, *find(world, m.RollbackPrepared), done)}

    assert ids == {"r0001"}
    assert [e.id for e in find(world, m.SnapshotRejected)] == [damaged]
    assert (done.checkpoint, done.step) == (escalated.checkpoint, 4)
    world.run()
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("acts", range(8))
@pytest.mark.parametrize("who", ["trainer", "daemon"])
@pytest.mark.parametrize("garbled", [False, True])
def test_whoever_dies_amid_a_fast_rollback_it_is_finished_by_the_next_start(acts, who, garbled):
    """From memory if the daemon lives, from disk if the memory ended with it; once, and on one branch."""
    world = until(SnappedWorld(0), 7)
    if garbled:
        world.damage(when="restored")
    assert_finished_though_dying(world, m.Rollback(tier=FAST), acts, who)


def test_a_trainer_that_died_is_started_from_memory_and_from_disk_once_that_is_damaged():
    """The newest snapshot, promoted or not; rejected, the checkpoint, and the steps between are run again."""
    world = until(SnappedWorld(0), 7)
    newest = world.state.snapshots.kept[-1]
    world.crash_trainer()
    until(world, 8)
    from_memory = find(world, m.TrainingStarted)[-1]
    world.crash_trainer()
    for slot in world.memory:
        world.memory[slot] = "noise"
    world.run()

    assert (from_memory.checkpoint, from_memory.step) == (newest.id, newest.step)
    assert find(world, m.SnapshotRejected)
    assert [e.first_difference for e in find(world, m.RerunFinished)] == [None] * len(find(world, m.RerunFinished))
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_what_differs_is_out_of_the_way_before_a_trainer_is_told_and_else_left_to_that_trainer():
    """The daemon checks the newest snapshot, then the next one that is newer than the checkpoints.

    After an order was sent, the daemon's check alone changes nothing.
    """
    world = until(SnappedWorld(0, slots=5), 8)
    on_disk = world.state.checkpoints.newest.step
    newer = [one.id for one in world.state.snapshots.kept if one.step > on_disk]
    for slot in world.memory:
        world.memory[slot] = "noise"
    world.crash_trainer()
    world.tick()
    while not (world.state.trainer.alive and world.state.trainer.ready):
        world.tick()
    before = [e.id for e in find(world, m.SnapshotRejected)]
    world.run()
    started = find(world, m.TrainingStarted)[-1].checkpoint

    calm = until(SnappedWorld(0), 7)
    newest = calm.state.snapshots.kept[-1].id
    calm.give(m.SnapshotDiffers(id=newest, why="it is damaged"))
    calm.give(m.SnapshotDiffers(id="s000000", why="nobody knows it"))

    assert len(newer) >= 2
    assert before == newer[::-1]
    assert started.startswith("c")
    assert find(calm, m.SnapshotRejected) == []
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_the_memory_goes_with_the_daemon_and_the_next_one_makes_its_own():
    """Nothing of the former ring is used, and the next daemon opens one."""
    world = until(SnappedWorld(0), 6)
    world.restart_daemon()
    kept = world.state.snapshots.kept
    world.run()

    assert kept == ()
    assert len(find(world, m.SnapshotRingOpened)) == 2
    started = [e.checkpoint for e in find(world, m.TrainingStarted)]
    assert started[1].startswith("c")


def test_a_severe_emergency_goes_back_by_memory_then_further_then_by_disk_then_halts():
    """Each target twice."""
    world = until(SnappedWorld(0, snapshot_watch=1), 7)
    for _ in range(30):
        if world.state.run.phase is st.Phase.FROZEN:
            break
        world.command(m.RaiseEmergency(level=m.Level.SEVERE, reason="loss"))
        for _ in range(8):
            if world.state.rollbacks.open is None:
                break
            world.tick()
    targets = [e.checkpoint for e in find(world, m.RollbackBegun)]

    assert world.state.run.phase is st.Phase.FROZEN
    assert {targets.count(one) for one in targets} == {2}
    assert [one[0] for one in targets] == sorted((one[0] for one in targets), reverse=True), "memory first, then disk"
    steps = [e.to_step for e in find(world, m.RollbackBegun) if e.tier is FAST]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) >= 2


def test_a_fast_rollback_beyond_its_budget_makes_the_run_careful_and_undoes_nothing():
    """The simulated one takes 0.3 s."""
    tight = {"fast_rollback": 200.0}
    slow = rolled_back(until(SnappedWorld(0, budget_limits=tight), 7), tier=FAST)
    quick = rolled_back(until(SnappedWorld(0), 7), tier=FAST)
    recorded = rolled_back(until(SnappedWorld(0, budget_limits=tight, budgets_act=False), 7), tier=FAST)

    assert find(recorded, m.ConservativeModeEntered) == []
    assert "budget" in find(slow, m.ConservativeModeEntered)[0].why
    assert find(quick, m.ConservativeModeEntered) == []
    assert len(find(slow, m.RolledBack)) == 1


def test_a_rollback_to_a_snapshot_that_is_gone_when_its_turn_comes_takes_an_older_checkpoint():
    """Ordered in a re-run, and then the daemon dies with its memory."""
    world = until(SnappedWorld(0, snapshot_every=3), 7)
    world.crash_trainer()
    while not world.state.trainer.alive:
        world.tick()
    newest = world.state.snapshots.promoted[-1]
    assert isinstance(world.command(m.Rollback(tier=FAST)), Accepted)
    world.restart_daemon()
    world.run()

    assert find(world, m.RollbackRequested)[0].checkpoint == newest.id
    assert find(world, m.RolledBack)[0].step <= newest.step
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_disasters_and_fast_rollbacks_together_end_on_one_whole_line(seed):
    """Forty drawn worlds with damaged memory: every begun thing has one end, each step once on the living line."""
    completed = back = memory = 0
    for offset in range(40):
        world = SnappedWorld(seed + offset, deaths_max=50)
        world.goes_back = True

        def go_back_at_times(world=world):
            if world.random.random() < 0.02:
                world.command(m.Rollback(tier=FAST))

        troubled(world, go_back_at_times)
        back += sum(e.tier is FAST for e in find(world, m.RollbackBegun))
        memory += sum(e.checkpoint.startswith("s") for e in find(world, m.TrainingStarted))
        if world.state.run.phase is st.Phase.COMPLETED:
            completed += 1
            assert living_steps(world) == list(range(1, TOTAL + 1)), f"seed {seed + offset}: {kinds(world)[-20:]}"
    print(f"{completed} of 40 completed, {back} fast rollbacks, {memory} starts from memory")
    assert completed >= 25
    assert back >= 5
    assert memory >= 5


@pytest.mark.parametrize("is_whole", [True, False])
def test_where_no_checkpoint_can_be_used_any_more_a_start_takes_the_snapshot_there_is(is_whole):
    """The run halted because no checkpoint was usable, and its trainer ended.

    A start takes the snapshot in memory. The run fails only if that is damaged too.
    """
    world = until(SnappedWorld(0), 7)
    world.broken.update(one.id for one in world.state.checkpoints.catalogue)
    world.command(m.RaiseEmergency(level=m.Level.MAJOR))
    tick_until(world, lambda: world.state.run.phase is st.Phase.FROZEN and not world.state.trainer.alive, "a halt")
    assert world.state.checkpoints.newest is None
    if not is_whole:
        world.memory.clear()
    assert isinstance(world.command(m.Rollback(tier=FAST)), Accepted)
    world.run()

    begun = find(world, m.TrainingStarted)[-1].checkpoint
    assert (world.state.run.phase is st.Phase.COMPLETED) == is_whole
    assert (begun == find(world, m.RolledBack)[-1].checkpoint) == is_whole
    if is_whole:
        assert living_steps(world) == list(range(1, TOTAL + 1))
    else:
        assert world.state.run.phase is st.Phase.FAILED
        assert "no checkpoint of this run can be used any more" in world.state.run.why
