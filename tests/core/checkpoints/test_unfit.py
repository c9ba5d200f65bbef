"""A checkpoint that is whole and of another shape than the model: passed over there, and taken wherever it fits."""

from __future__ import annotations

from msgspec.structs import replace

from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import World, completes, find, tick_until, until
from tests.core.simulated_trainer import OF_ANOTHER_SHAPE
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.decision import Accepted


def grown(step: int = 7) -> World:
    """The model changed after every checkpoint: none of them fits the living trainer."""
    world = until(World(0), step)
    world.trainer.unfit = {one.id for one in world.state.checkpoints.catalogue}
    return world


def refused(world: World, **how: object) -> m.CheckpointUnfit:
    """Order it and let it be refused."""
    before = len(find(world, m.RollbackAborted))
    assert isinstance(world.command(m.Rollback(**how)), Accepted)
    tick_until(world, lambda: len(find(world, m.RollbackAborted)) > before, "a refusal")
    return find(world, m.CheckpointUnfit)[-1]


def test_a_rollback_over_a_change_of_the_model_is_refused_with_its_reason_and_the_checkpoint_stays():
    """Nothing is rejected, training goes on, this trainer is not asked again, and the next one may begin there."""
    world = grown()
    unfit = refused(world, epoch=1)
    entry = next(one for one in world.state.checkpoints.catalogue if one.id == unfit.id)
    again = world.command(m.Rollback(to=unfit.id))

    assert (unfit.file, unfit.why) == (OF_ANOTHER_SHAPE["file"], OF_ANOTHER_SHAPE["why"])
    assert (unfit.incarnation, unfit.context) == (world.state.trainer.incarnation, "")
    assert OF_ANOTHER_SHAPE["why"] in find(world, m.RollbackAborted)[0].why
    assert not find(world, m.CheckpointRejected)
    assert entry.is_target
    assert entry not in q.usable_targets(world.state)
    assert isinstance(again, m.Refusal)
    assert "of another shape than the model that trains now" in again.why

    world.crash_trainer()
    tick_until(world, lambda: len(find(world, m.TrainingStarted)) > 1, "a next start")
    assert find(world, m.TrainingStarted)[-1].checkpoint == unfit.id
    assert entry.id in {one.id for one in q.usable_targets(world.state)}
    completes(world)
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_what_the_refusal_advises_works():
    """CRITICAL ends the trainer; the same order then begins a new one at the target."""
    world = grown()
    unfit = refused(world, epoch=1)
    world.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="to go back"))
    tick_until(world, lambda: world.state.run.phase is st.Phase.FROZEN and not world.state.trainer.alive, "a freeze")

    assert isinstance(world.command(m.Rollback(to=unfit.id)), Accepted)
    world.run()
    assert find(world, m.RolledBack)[0].checkpoint == unfit.id
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_rollback_on_the_runs_own_account_passes_over_what_does_not_fit_and_halts_where_nothing_does():
    """This holds for the living trainer only: an operator's resume starts the next trainer, which can begin there."""
    world = grown()
    for one in world.state.checkpoints.catalogue:
        refused(world, to=one.id)
    world.command(m.RaiseEmergency(level=m.Level.MAJOR, reason="smoke"))
    tick_until(world, lambda: world.state.run.phase is st.Phase.FROZEN, "a halt")
    tick_until(world, lambda: not world.state.trainer.alive, "the trainer's end")
    world.command(m.Rollback(epoch=1))
    world.run()

    assert world.state.run.phase is st.Phase.COMPLETED
    assert not find(world, m.CheckpointRejected)


def test_a_start_passes_over_what_is_of_another_shape_once_for_its_context():
    """The next older one; the next start there does not try again, one in another context does."""
    world = until(World(0), 7)
    newest = world.state.checkpoints.newest
    world.unfit = {newest.id}
    world.restart_daemon()
    tick_until(world, lambda: len(find(world, m.TrainingStarted)) > 1, "a start")
    (unfit,) = find(world, m.CheckpointUnfit)
    older = find(world, m.TrainingStarted)[-1].checkpoint

    assert (unfit.id, unfit.context) == (newest.id, world.state.progress.environment)
    assert older < newest.id
    # Checkpoints that a start can begin from are kept beside those that it cannot.
    assert {older, newest.id} <= q.pinned_checkpoints(world.state.checkpoints, keep_last=1).keys()

    world.restart_daemon()
    tick_until(world, lambda: len(find(world, m.TrainingStarted)) > 2, "a start")
    assert len(find(world, m.CheckpointUnfit)) == 1
    assert find(world, m.TrainingStarted)[-1].checkpoint == older

    world.unfit = set()
    world.environment = replace(world.environment, model_hash="ee" * 32)
    world.restart_daemon()
    tick_until(world, lambda: len(find(world, m.TrainingStarted)) > 3, "a start")
    assert find(world, m.TrainingStarted)[-1].checkpoint == newest.id


def test_a_task_whose_model_fits_no_checkpoint_loses_none():
    """The run fails as badly configured; with its former model it is tried again and goes on."""
    world = until(World(0), 7)
    former, ids = world.environment, {one.id for one in world.state.checkpoints.catalogue}
    world.unfit, world.environment = ids, replace(former, model_hash="ee" * 32)
    world.restart_daemon()
    world.run()

    assert {one.id for one in find(world, m.CheckpointUnfit)} == ids
    assert (world.state.run.phase, world.exit) == (st.Phase.FAILED, 78)
    assert find(world, m.RunFailed)[0].kind is m.FailureKind.CONFIGURATION
    world.unfit, world.environment = set(), former
    world.restart_daemon(m.StartMode.RETRY)
    completes(world)
    assert living_steps(world) == list(range(1, TOTAL + 1))
