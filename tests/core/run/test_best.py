"""The best epoch of the run's own branch: a rollback removes what it abandons, and earlier epochs count again."""

from __future__ import annotations

import math
import random

import pytest

from tests.core.rated import RatedWorld
from tests.core.rollback.test_rollback import rolled_back
from tests.core.simulate import ValidatingWorld, World, find, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.snapped import SnappedWorld
from tests.core.test_lifecycle import KEEP_BEST, kept
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.state.run_state import RunState, canonical_bytes, capture, fold, read_capture

BEST = {"checkpoint_every_epochs": 1, "checkpoint_gap_s": 0.0, **KEEP_BEST}


def in_epoch_three(world: World, **accuracy: float) -> World:
    """Epoch 1 was good, epoch 2 the best; the third has begun."""
    world.accuracy.update({1: 0.3, 2: 0.5, 3: 0.2})
    return until(world, 2 * STEPS_PER_EPOCH + 2)


def amid_epoch_two(world: World) -> m.CheckpointRef:
    """Return an ordered checkpoint amid epoch 2. Epoch 1 was good, and epoch 2 will be the best."""
    world.accuracy.update({1: 0.3, 2: 0.5, 3: 0.2})
    until(world, STEPS_PER_EPOCH + 2)
    world.command(m.Checkpoint())
    tick_until(
        world, lambda: find(world, m.CheckpointCommitted)[-1].step > STEPS_PER_EPOCH, "one amid the second epoch"
    )
    return world.state.checkpoints.newest


def best_of(world: World) -> tuple[float | None, int, str]:
    """Value, epoch, and what is kept of it."""
    limits = world.state.limits
    return limits.best, limits.best_epoch, world.state.checkpoints.best


def test_a_rollback_after_the_best_epoch_leaves_the_best_of_what_is_left():
    """The second epoch is abandoned: the first is the best again and keeps its checkpoint. A worse second one is not
    the best.
    """
    world = in_epoch_three(World(0, **BEST))
    before = best_of(world)
    first = find(world, m.CheckpointCommitted)[1].id
    rolled_back(world, epoch=1)
    left = best_of(world)
    pins = q.pinned_checkpoints(world.state.checkpoints, 1)
    world.accuracy.update({2: 0.2, 3: 0.25})
    world.run()

    assert before[:2] == (0.5, 2)
    assert before[2] not in ("", first)
    assert left == (0.3, 1, first)
    assert pins[first] == "best"
    assert [(e.epoch, e.value) for e in find(world, m.ValidationImproved)] == [(1, 0.3), (2, 0.5)]
    assert (best_of(world), kept(world)) == ((0.3, 1, first), (2, 0))
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_rollback_to_the_start_forgets_every_epoch():
    """The first validation after that is the best again."""
    world = rolled_back(in_epoch_three(World(0, **BEST)), epoch=0)
    left = best_of(world)
    world.accuracy.update({1: 0.29, 2: 0.28, 3: 0.28})
    world.run()

    assert left == (None, 0, "")
    assert (best_of(world)[:2], kept(world)) == ((0.29, 1), (2, 0))


def test_patience_counts_from_the_best_epoch_of_the_line_that_is_left():
    """One epoch of patience: the second is worse than the first this time, so it is the last."""
    world = in_epoch_three(World(0, checkpoint_every_epochs=1, checkpoint_gap_s=0.0, patience=1, **KEEP_BEST))
    rolled_back(world, epoch=1)
    world.accuracy.update({2: 0.2})
    world.run()

    assert [(e.limit, e.epoch) for e in find(world, m.LimitReached)] == [(m.Limit.PATIENCE, 2)]
    assert world.state.run.phase is st.Phase.COMPLETED


def test_the_accuracy_that_status_calls_the_best_is_of_this_line_too():
    """Whether or not anything is kept or ended by it."""
    world = in_epoch_three(World(0, checkpoint_every_epochs=1, checkpoint_gap_s=0.0))
    before = world.state.progress.best_accuracy
    rolled_back(world, epoch=1)

    assert (before, world.state.progress.best_accuracy) == (0.5, 0.3)


def test_the_best_whose_checkpoint_is_gone_is_owed_one_and_hinders_no_start_from_memory():
    """It was removed after a better epoch, which was abandoned: a start after its end could not make it again."""
    world = SnappedWorld(0, keep_last=1, quota=25, **BEST)
    amid = amid_epoch_two(world)
    world.command(m.Rollback(to=amid.id))
    newer = tick_until(
        world, lambda: world.state.snapshots.kept[-1].step > amid.step, "a snapshot"
    ).state.snapshots.kept[-1]
    first = world.state.checkpoints.best
    lost = m.CheckpointDeletionBegun(id=first, why="the quota is 25 bytes", size=10)
    state = fold(world.state, (lost, m.CheckpointDeleted(id=first)))

    assert (q.epoch_to_keep(world.state), world.state.limits.best_epoch) == (0, 1)
    assert (q.epoch_to_keep(state), state.checkpoints.best, state.limits.best_epoch) == (1, "", 1)
    assert q.newest_beyond(state, state.checkpoints.newest) is newer


def test_a_best_that_is_made_amid_a_re_run_is_started_from_with_every_step_after_it():
    """Its checkpoint was damaged. The next start writes it again while it re-runs later steps, and dies before a newer
    one.
    """
    world = World(0, checkpoint_every_epochs=100, **KEEP_BEST)
    world.accuracy.update({1: 0.5, 2: 0.2, 3: 0.2})
    until(world, STEPS_PER_EPOCH + 3)
    world.break_newest()
    world.restart_daemon()
    tick_until(world, lambda: find(world, m.RerunFinished), "a re-run")
    again = world.state.checkpoints.newest
    world.restart_daemon()
    world.run()

    assert (again.reason, again.step, kept(world)) == (m.CheckpointReason.BEST, STEPS_PER_EPOCH, (2, 0))
    assert find(world, m.TrainingStarted)[-1].checkpoint == again.id
    reruns = [(e.first, e.last) for e in find(world, m.RerunFinished)]
    assert reruns == [(1, STEPS_PER_EPOCH + 3), (STEPS_PER_EPOCH + 1, STEPS_PER_EPOCH + 3)]
    assert world.state.run.phase is st.Phase.COMPLETED


def oracle(events) -> list[tuple[float, tuple[int, int]]]:
    """List each accuracy of the branch that was better than all before it, with the place after it, from the journal's
    validations.
    """
    line: list[tuple[tuple[int, int], float]] = []
    for event in events:
        match event:
            case m.ValidationFinished(epoch=epoch, batch=batch, metrics=metrics):
                line.append(((epoch, batch) if batch else (epoch + 1, 0), metrics["accuracy"]))
            case m.RolledBack(epoch=epoch, batch=batch):
                line = [one for one in line if one[0] <= (epoch, batch)]
    bests: list[tuple[float, tuple[int, int]]] = []
    for place, value in line:
        if not math.isnan(value) and (not bests or value > bests[-1][0]):
            bests.append((value, place))
    return bests


def is_end_of(one, bests) -> bool:
    """Of a validation that was the best once, on this line, and can be used."""
    places = {place for _, place in bests}
    return (one.epoch, one.batch) in places and not (one.abandoned or one.rejected or one.condemned)


@pytest.mark.parametrize("kind", [World, ValidatingWorld])
def test_whatever_is_drawn_the_best_is_that_of_the_line_and_what_is_kept_is_its_end(kind, seed):
    """Rollbacks, deaths, damaged files, accuracies: by the fold of the whole journal and from any capture."""
    draw, judged = random.Random(seed), 0
    for offset in range(25):
        world = kind(seed + offset, deaths_max=50, keep_last=2, quota=60, **BEST)
        world.goes_back = True
        held, behind = RunState(), 0
        for _ in range(300):
            if world.exit is not None:
                break
            world.accuracy[draw.choice((1, 2, 3))] = draw.choice((0.1, 0.2, 0.3, 0.4, 0.5, math.nan))
            world.anything()
            state, limits = world.state, world.state.limits
            bests = oracle(world.events)
            at = limits.best_place if limits.best_epoch else (1, 0)
            assert (limits.best, at) == (bests[-1] if bests else (None, (1, 0))), f"seed {seed + offset}"
            ends = [one for one in state.checkpoints.catalogue if is_end_of(one, bests)]
            assert state.checkpoints.best == (ends[-1].id if ends else ""), f"seed {seed + offset}"
            judged += limits.best_epoch > 0 and state.rollbacks.done > 0
            if draw.random() < 0.05:
                held, behind = read_capture(capture(state)), len(world.events)
        whole = canonical_bytes(world.state)
        assert canonical_bytes(fold(held, world.events[behind:])) == whole
        assert canonical_bytes(fold(RunState(), world.events)) == whole
    assert judged > 200, f"{judged} moments after a rollback"


@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_a_death_after_the_rollback_changes_nothing_of_it(who):
    """The bar and what is kept are the same for the next start, and at the end."""
    world = rolled_back(in_epoch_three(World(0, **BEST)), epoch=1)
    left = best_of(world)
    world.accuracy.update({2: 0.2, 3: 0.25})
    until(world, STEPS_PER_EPOCH + 2)
    world.crash_trainer() if who == "trainer" else world.restart_daemon()
    world.run()

    assert best_of(world) == left == (0.3, 1, find(world, m.CheckpointCommitted)[1].id)


def test_a_plateau_is_held_against_the_best_of_this_line_too():
    """Its best metric, the epochs it has borne and its rate are those of the target, whoever says so."""
    world = RatedWorld(0, checkpoint_every_epochs=1, checkpoint_gap_s=0.0)
    tick_until(world, lambda: len(find(world, m.CheckpointCommitted)) == 2, "the end of the first epoch")
    first = world.state.rates.group("seed").plateau
    until(world, 2 * STEPS_PER_EPOCH + 2)
    second = world.state.rates.group("seed").plateau
    rolled_back(world, epoch=1)
    tick_until(world, lambda: not world.state.rates.stale, "the word on where rates stand")

    assert first is not None
    assert second != first
    assert world.state.rates.group("seed").plateau == first


def test_a_best_that_a_rollback_brings_back_is_made_anew_with_its_values():
    """A better epoch came after it and was abandoned. Its checkpoint is damaged, so a re-run makes another one."""
    world = World(0, checkpoint_every_epochs=100, **KEEP_BEST)
    amid = amid_epoch_two(world)
    until(world, 2 * STEPS_PER_EPOCH + 2)
    better = best_of(world)
    left = best_of(rolled_back(world, to=amid.id))
    world.broken |= {amid.id, left[2]}
    world.restart_daemon()
    tick_until(world, lambda: find(world, m.RerunFinished), "a re-run")
    again = best_of(world)
    rolled_back(world, to=again[2])

    assert (better[:2], left[:2], again[:2]) == ((0.5, 2), (0.3, 1), (0.3, 1))
    assert again[2] not in ("", left[2])
    assert best_of(world) == again
