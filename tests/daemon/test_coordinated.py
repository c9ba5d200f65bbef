"""A run as one subsystem among others: the coordinators order the kernel's own rollback, and never another."""

from __future__ import annotations

import asyncio

import pytest

from tests.core.simulate import World, find, until
from tests.daemon.test_training import SimulatedPort
from tests.supervisor.test_coordinators import Subsystem
from tolariad.core.run import Phase
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import rollback as rb
from tolariad.daemon.training import TrainingTask
from tolariad.supervisor import (
    DistributedRollbackCoordinator,
    EmergencyProtocolHandler,
    FastRollbackCoordinator,
    RunParticipant,
)


@pytest.fixture
async def run(tmp_path):
    """A run at step 5 that goes on, and it as a participant."""
    port = SimulatedPort(until(World(0), 5))
    playing = asyncio.ensure_future(port.play())
    yield port.world, RunParticipant(TrainingTask(port, tmp_path))
    playing.cancel()


class Late(RunParticipant):
    """Is told of COMMIT only when the fast tier's time is nearly over, and then some."""

    async def commit(self, rollback):
        answered = await super().commit(rollback)
        if not self.was_late:
            self.was_late = True
            await asyncio.sleep(3600)
        return answered

    was_late = False


async def test_strategy_and_seeds_commit_before_the_run_goes_back_by_its_own_journal(run):
    """One RolledBack, on a branch, to the epoch that was said; what came of it is what the coordinator says."""
    world, training = run
    log = []
    others = [Subsystem(name, log) for name in ("kasmina", "tamiyo")]
    coordinator = DistributedRollbackCoordinator(participants=[training, *others])

    assert await coordinator.initiate_rollback(1, "loss")
    assert await coordinator.initiate_rollback(1, "again", rollback_id=coordinator.last.rollback)
    (back,) = find(world, rb.RolledBack)
    assert (back.branch, back.step) == (1, 4)
    assert log == [(phase, name) for phase in ("prepare", "commit", "confirm") for name in ("tamiyo", "kasmina")]


async def test_a_subsystem_that_cannot_keeps_the_run_where_it_is(run):
    """Unanimous: nothing of it is in the journal."""
    world, training = run
    seeds = Subsystem("kasmina", [], no="prepare")

    assert not await FastRollbackCoordinator(participants=[training, seeds]).initiate_fast_rollback(1, "loss")
    assert find(world, rb.RollbackRequested) == []
    assert not await training.commit("r1"), "nothing was prepared any more"


async def test_a_run_that_refuses_is_a_refusal_of_the_core(run):
    """Stopped: the others are told that it is off, and an emergency freezes."""
    world, training = run
    world.command(cv.Stop())
    log, frozen = [], []
    coordinator = FastRollbackCoordinator(participants=[training, Subsystem("kasmina", log)])
    handler = EmergencyProtocolHandler(rollback=coordinator, freeze=lambda: frozen.append(True))

    assert not await handler.handle_emergency("SEVERE", "loss", 1)
    assert (frozen, log[-1]) == ([True], ("abort", "kasmina"))
    assert coordinator.last.refused == ("tolaria",)
    assert world.state.run.phase in (Phase.STOPPING, Phase.STOPPED)


async def test_a_run_that_takes_longer_than_the_fast_tier_has_is_not_sent_back_twice(tmp_path):
    """The full tier asks under the same id, and hears what came of the one that was ordered."""
    port = SimulatedPort(until(World(0), 5))
    playing = asyncio.ensure_future(port.play())
    training = Late(TrainingTask(port, tmp_path))
    both = FastRollbackCoordinator(
        participants=[training], full=DistributedRollbackCoordinator(participants=[training])
    )

    assert await both.initiate_fast_rollback(1, "loss")
    assert both.last.refused == ("tolaria",)
    assert len(find(port.world, rb.RollbackRequested)) == 1
    playing.cancel()
