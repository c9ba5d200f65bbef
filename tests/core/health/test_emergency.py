"""Emergencies through `decide`, without a process: what follows from each level, when, and what remains."""

from __future__ import annotations

import pytest

from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import World, find, kinds, tick_until, until
from tests.core.test_lifecycle import assert_every_begun_has_one_end
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.decision import Accepted


def test_levels_of_emergency_lead_to_a_record_a_rollback_or_a_halt():
    """MINOR changes nothing, MAJOR and SEVERE go back, CRITICAL freezes until an operator goes on."""
    minor, major, critical = (until(World(0), 7) for _ in range(3))
    minor.command(m.RaiseEmergency(level=m.Level.MINOR))
    major.command(m.RaiseEmergency(level=m.Level.MAJOR, reason="accuracy"))
    critical.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"))
    phase, why = critical.state.run.phase, critical.state.run.why
    for _ in range(30):
        critical.tick()
    stood_at = critical.state.progress.step
    critical.command(m.Resume())
    for world in (minor, major, critical):
        world.run()

    assert find(minor, m.RollbackBegun) == []
    assert find(major, m.RollbackBegun)[0].why == "accuracy"
    assert (phase, why, stood_at) == (st.Phase.FROZEN, "smoke", 7)
    assert all(living_steps(world) == list(range(1, TOTAL + 1)) for world in (minor, major, critical))
    assert critical.state.emergency.level is None


def test_an_emergency_says_what_follows_from_it():
    """A record only: MINOR, during another rollback, or frozen. A halt if no target is left."""
    world = until(World(0), 7)
    for level in (m.Level.MINOR, m.Level.MAJOR, m.Level.SEVERE, m.Level.CRITICAL, m.Level.MAJOR):
        world.command(m.RaiseEmergency(level=level))
    lost = until(World(0), 7)
    for _ in range(5):
        lost.command(m.RaiseEmergency(level=m.Level.MAJOR))
        for _ in range(6):
            lost.tick()
    again = until(World(0), 7)
    again.restart_daemon()
    again.command(m.RaiseEmergency(level=m.Level.MAJOR))
    record, back, halt = m.Follows.RECORD, m.Follows.ROLLBACK, m.Follows.HALT

    assert [one.follows for one in find(world, m.EmergencyRaised)] == [record, back, record, halt, record]
    assert [one.follows for one in find(lost, m.EmergencyRaised)] == [back] * 4 + [halt]
    assert [one.follows for one in find(again, m.EmergencyRaised)] == [back]


@pytest.mark.parametrize("level", [m.Level.MAJOR, m.Level.SEVERE])
def test_an_emergency_in_a_pause_without_a_trainer_goes_back_at_once(level):
    """Nobody would begin it before somebody resumes; the pause stays, and the next start begins at the target."""
    world = until(World(0), 7)
    world.command(m.Pause())
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")
    world.restart_daemon()
    world.command(m.RaiseEmergency(level=level, reason="smells"))
    names = kinds(world)
    back = world.state.progress.step
    world.command(m.Resume())
    world.run()

    assert names[-3:] == ["RollbackBegun", "RolledBack", "RunPaused"]
    assert back == 4
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("level", [m.Level.MAJOR, m.Level.SEVERE])
@pytest.mark.parametrize("ticks", [0, 1, 3, 4])
def test_an_emergency_that_comes_before_training_goes_on_leads_back_when_it_does(level, ticks):
    """While the trainer is started, built, restored, or steps are run again; once, with its reason."""
    world = until(World(0), 7)
    world.restart_daemon()
    for _ in range(ticks):
        world.tick()
    assert world.state.progress.rerun is not None or not (world.state.trainer.alive and world.state.trainer.began)
    assert isinstance(world.command(m.RaiseEmergency(level=level, reason="smells")), Accepted)
    assert world.command(m.RaiseEmergency(level=level, reason="again")) is not None
    assert find(world, m.RollbackBegun) == []
    world.run()

    assert [e.why for e in find(world, m.RollbackBegun)] == ["smells"]
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert_every_begun_has_one_end(world)


def test_an_emergency_while_the_run_stands_frozen_is_a_record():
    """Only resume, rollback or stop leaves it."""
    world = until(World(0), 7)
    world.command(m.RaiseEmergency(level=m.Level.CRITICAL))
    for _ in range(9):
        world.tick()
    for level in m.Level:
        assert isinstance(world.command(m.RaiseEmergency(level=level)), Accepted)
    for _ in range(9):
        world.tick()

    assert world.state.run.phase is st.Phase.FROZEN
    assert (find(world, m.RollbackRequested), find(world, m.RollbackBegun)) == ([], [])
    assert len(find(world, m.RunFrozen)) == 1


def test_a_severe_emergency_makes_the_run_careful_and_checkpoints_come_sooner():
    """Conservative mode begins once, with the emergency's reason; the interval between checkpoints is halved."""
    world = until(World(0, checkpoint_interval_s=100.0), 7)
    half_over = world.state.checkpoints.clock_mono + 60 * 10**9
    before = q.interval_is_over(world.state, half_over)
    world.command(m.RaiseEmergency(level=m.Level.SEVERE, reason="loss"))
    world.command(m.RaiseEmergency(level=m.Level.SEVERE, reason="again"))

    assert [e.why for e in find(world, m.ConservativeModeEntered)] == ["loss"]
    assert (before, q.interval_is_over(world.state, half_over)) == (False, True)


def test_a_level_only_rises_until_it_is_cleared():
    """A lesser one is recorded and changes nothing; a healthy epoch clears."""
    world = until(World(0), 5)
    world.command(m.RaiseEmergency(level=m.Level.MINOR))
    world.command(m.RaiseEmergency(level=m.Level.MINOR))
    assert (world.state.emergency.level, world.state.emergency.raised) == (m.Level.MINOR, 2)
    tick_until(world, lambda: world.state.progress.epoch_finished == 2, "the end of the epoch it was raised in")
    assert world.state.emergency.level is m.Level.MINOR, "no healthy epoch"
    world.run()

    assert world.state.emergency.level is None
    assert [e.why for e in find(world, m.EmergencyCleared)] == ["epoch 3 was healthy"]


def test_the_level_and_the_halt_are_for_the_same_reason():
    """The reason is that of the event that set the level or halted the run. Events of a frozen run change neither."""
    world = until(World(0), 7)

    def reasons():
        run, emergency = world.state.run, world.state.emergency
        return run.why if run.phase is st.Phase.FROZEN else None, emergency.level, emergency.why

    def raised(level, reason):
        world.command(m.RaiseEmergency(level=level, reason=reason))
        return reasons()

    shown = [raised(m.Level.CRITICAL, "fire"), raised(m.Level.CRITICAL, "more fire")]
    world.command(m.Rollback())
    tick_until(world, lambda: world.state.run.phase is st.Phase.RUNNING, "training after the rollback")
    shown += [reasons(), raised(m.Level.MINOR, "smoke"), raised(m.Level.CRITICAL, "fire again")]

    assert shown == [
        ("fire", m.Level.CRITICAL, "fire"),
        ("fire", m.Level.CRITICAL, "fire"),
        (None, m.Level.CRITICAL, "fire"),
        (None, m.Level.CRITICAL, "fire"),
        ("fire again", m.Level.CRITICAL, "fire again"),
    ]


def test_a_lesser_emergency_that_halts_says_why_at_both():
    """Nothing is left to go back to: what stands frozen adds that to the emergency's own reason."""
    world = until(World(0), 7)
    for number in range(5):
        world.command(m.RaiseEmergency(level=m.Level.MAJOR, reason=f"odd {number}"))
        for _ in range(6):
            world.tick()
    last = find(world, m.EmergencyRaised)[-1]

    assert last.follows is m.Follows.HALT
    assert world.state.emergency.why == last.why == "odd 4"
    assert world.state.run.why.startswith("odd 4; ")


def test_major_leaves_no_checkpoint_of_what_it_leaves():
    """A checkpoint that is being written after the target is given up. One that was committed there is never promoted.

    The emergency itself begins none (decision 0012).
    """
    for step in (5, 6, 7):
        world = until(World(0, snapshot_watch=2), step)
        world.command(m.Checkpoint())
        behind = world.state.checkpoints.open[-1].id
        tick_until(world, lambda w=world: not w.state.checkpoints.open, "its end")
        world.command(m.Checkpoint())
        being_written = world.state.checkpoints.open[-1].id
        target = next(one for one in reversed(world.state.checkpoints.catalogue) if one.promoted)
        ordered = len(find(world, m.CheckpointBegun))
        world.command(m.RaiseEmergency(level=m.Level.MAJOR))
        tick_until(world, lambda w=world: w.state.rollbacks.done, "the rollback")
        (done,) = find(world, m.RolledBack)
        begun = len(find(world, m.CheckpointBegun))
        world.run()
        left = {one.id: one for one in world.state.checkpoints.catalogue if one.id in (behind, being_written)}

        assert (done.checkpoint, begun) == (target.id, ordered)
        assert behind in left
        assert all(one.abandoned and not (one.promoted or one.is_target) for one in left.values())
        assert not {behind, being_written} & {e.id for e in find(world, m.CheckpointPromoted)}
        assert living_steps(world) == list(range(1, TOTAL + 1))
        assert_every_begun_has_one_end(world)
