"""After which epochs a checkpoint is due: those of the interval, and those that a cycle of pruning begins after."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, find, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.plan import PrunePlan

HOUR = 3_600_000_000_000
PLAN = PrunePlan(transition_epoch=12, last_epoch=30, interval=5)


def due(plan, override=None, gap_s=30.0):
    """The epochs of 40 after which a checkpoint is due, every 20 by the interval."""
    state = until(World(0, checkpoint_every_epochs=20, checkpoint_interval_s=1e9), 2).state
    state = replace(
        state,
        run=replace(state.run, policy=replace(state.run.policy, prune=plan, checkpoint_gap_s=gap_s)),
        pruning=replace(state.pruning, override=override),
        # A cheap one may come sooner.
        checkpoints=replace(state.checkpoints, seconds=HOUR),
    )
    return {epoch for epoch in range(1, 41) if q.due_after_epoch(state, epoch, state.checkpoints.clock_mono + HOUR)}


@pytest.mark.parametrize(
    ("plan", "override", "epochs"),
    [
        (None, None, {20, 40}),
        (PLAN, None, {15, 20, 25, 30, 40}),
        (PLAN, PruningPhase.DISABLED, {20, 40}),
        (PLAN, PruningPhase.VALIDATION_ONLY, {20, 40}),
    ],
)
def test_a_cycle_that_prunes_gets_its_checkpoint(plan, override, epochs):
    """At multiples of `pruning_checkpoint_interval` while the phase is ACTIVE_PRUNING; cycles that analyse add none."""
    assert due(plan, override) == epochs


@pytest.mark.parametrize(("seconds", "gap_s"), [(0.0, 30.0), (0.05, 5.0), (0.3, 30.0), (2.0, 30.0)])
def test_a_cheap_checkpoint_may_come_sooner(seconds, gap_s):
    """The gap is a hundred times as long as the newest one took to write, and min_gap_s at most."""
    state = until(World(0, checkpoint_every_epochs=1, checkpoint_interval_s=1e9, checkpoint_gap_s=30.0), 2).state
    state = replace(state, checkpoints=replace(state.checkpoints, seconds=seconds, open=()))

    def is_due(elapsed_s):
        return q.due_after_epoch(state, 1, state.checkpoints.clock_mono + int(elapsed_s * 1e9))

    assert q.gap_s(state) == pytest.approx(gap_s)
    assert (is_due(0.9 * gap_s), is_due(1.1 * gap_s)) == (False, True)


def test_an_interval_in_steps_is_counted_from_the_runs_beginning():
    """At multiples of it, however late the last one came; not while one is written, and never within the gap."""
    state = until(World(0, checkpoint_every_steps=10, checkpoint_interval_s=1e9, checkpoint_gap_s=1.0), 2).state
    (newest, *_) = state.checkpoints.catalogue
    after_gap = state.checkpoints.clock_mono + 2_000_000_000

    def is_due(step, saved, mono=after_gap, opened=()):
        held = replace(state.checkpoints, catalogue=(replace(newest, step=saved),), open=opened, seconds=0.0)
        return q.interval_is_over(replace(state, checkpoints=held, progress=replace(state.progress, step=step)), mono)

    assert [step for step in range(41) if is_due(step, saved=13)] == [*range(20, 41)]
    assert [step for step in range(41) if is_due(step, saved=20)] == [*range(30, 41)]
    assert not is_due(30, saved=13, mono=state.checkpoints.clock_mono)
    assert not is_due(30, saved=13, opened=(st.OpenCheckpoint("c000009", newest.reason, m.Cause(1, 1)),))


def test_a_run_with_an_interval_in_steps_has_its_checkpoints():
    """One after each ten steps, and those that every run has."""
    world = World(
        0, checkpoint_every_steps=10, checkpoint_every_epochs=1000, checkpoint_interval_s=1e9, checkpoint_gap_s=0.0
    )
    world.run()
    tens = {one.step // 10 for one in find(world, m.CheckpointCommitted)}

    assert tens >= set(range(1, world.state.progress.step // 10))


def test_no_cycle_brings_two_checkpoints_within_the_gap():
    """`checkpoint.min_gap_s` holds for pruning too."""
    assert due(PLAN, gap_s=1e9) == set()
