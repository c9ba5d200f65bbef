"""While memory is short two slots hold all snapshots; every order and every death finds the one it was promised."""

from __future__ import annotations

import random

import pytest

from tests.core.health.test_budgets import tally
from tests.core.rollback.test_rollback import TOTAL, living_steps, rolled_back
from tests.core.simulate import find, until
from tests.core.snapped import SnappedWorld
from tests.core.test_lifecycle import assert_every_begun_has_one_end
from tolariad.core import messages as m
from tolariad.core import state as st


def measured(world: SnappedWorld, percent: float) -> None:
    """A share of memory is measured. Its limit is 40 percent."""
    world.give(m.BudgetsReported(tallies=(tally("memory_model", percent),)))


def held(world: SnappedWorld) -> set[int]:
    """The slots with a snapshot, or with one that is being taken."""
    s = world.state.snapshots
    return {one.slot for one in s.kept} | ({s.open.slot} if s.open else set())


def test_a_pressure_gives_up_all_but_two_snapshots_and_its_end_brings_the_slots_back():
    """The event names those that go. The newest promoted one stays, so a rollback finds what it would have found."""
    world = until(SnappedWorld(0, slots=5), 7)
    before = world.state.snapshots
    assert len(held(world)) == 5
    measured(world, 50.0)
    (pressed,) = find(world, m.MemoryPressed)
    stays = [one for one in before.kept if one.id not in pressed.snapshots]
    assert list(world.state.snapshots.kept) == stays
    assert before.promoted[-1] in stays
    assert len(held(world)) == 2

    measured(world, 30.0)
    until(world, 11)
    assert len(find(world, m.MemoryRelieved)) == 1
    assert len(held(world)) > 3


@pytest.mark.parametrize("crossing", ["nothing", "rollback", "trainer", "daemon"])
def test_at_any_moment_of_a_pressure_no_third_slot_is_used(seed, crossing):
    """At every event, whatever happens; no snapshot that is used has lost its memory, and the run completes."""
    for first in range(2, 9):
        world = until(SnappedWorld(seed, slots=5), first)
        draw = random.Random(seed + first)
        for _ in range(draw.randrange(4)):
            world.tick()
        measured(world, 50.0)
        last, acts = draw.randint(first + 1, TOTAL - 1), 0
        happens = draw.randrange(12)
        while world.state.progress.step < last:
            if acts == happens:
                match crossing:
                    case "rollback" if world.state.snapshots.promoted:
                        rolled_back(world, tier=m.Tier.FAST)
                    case "trainer":
                        world.crash_trainer()
                    case "daemon":
                        world.restart_daemon()
            world.tick()
            acts += 1
            assert held(world) <= set(world.state.snapshots.narrow)
            assert len(held(world)) <= 2
        measured(world, 30.0)
        world.run()

        assert_every_begun_has_one_end(world)
        assert [find(world, kind) for kind in (m.SnapshotRejected, m.CheckpointRejected)] == [[], []]
        assert living_steps(world) == list(range(1, TOTAL + 1))
        assert world.state.run.phase is st.Phase.COMPLETED


def test_a_rollback_under_way_is_not_robbed_of_its_snapshot():
    """A pressure that is measured meanwhile is recorded at the next measurement."""
    world = until(SnappedWorld(0, slots=5), 7)
    oldest = world.state.snapshots.promoted[0]
    world.command(m.Rollback(to=oldest.id, tier=m.Tier.FAST))
    assert world.state.rollbacks.open is not None
    measured(world, 50.0)
    during = find(world, m.MemoryPressed)
    world.run()
    (done,) = find(world, m.RolledBack)

    assert (during, done.checkpoint) == ([], oldest.id)
    assert find(world, m.RollbackEscalated) == []
