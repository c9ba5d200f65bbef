"""When importance is exported, which checkpoint names it, and when its file is removed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.core.pruning.pruned import PLAN, PrunedWorld
from tests.core.simulate import find, tick_until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.rules import pruning
from tolariad.core.state.run_state import RunState

DAY_NS = 86_400_000_000_000
NOW = 100 * DAY_NS


def analysed(**plan):
    """A run whose newest checkpoint was analysed, with nothing under way."""
    world = PrunedWorld(1, epochs=9, prune=replace(PLAN, **plan))
    tick_until(world, lambda: find(world, m.PruneAnalyzed) and not q.why_busy(world.state), "an analysis")
    return world


@pytest.mark.parametrize(
    ("transition", "reason", "is_due"),
    [
        (100, m.CheckpointReason.INTERVAL, True),
        (100, m.CheckpointReason.ORDERED, False),
        (0, m.CheckpointReason.INTERVAL, False),
    ],
)
def test_a_checkpoint_within_an_epoch_is_analysed_too_before_pruning_begins(transition, reason, is_due):
    """If it was taken for its interval. When pruning has begun, epochs decide."""
    world = analysed(transition_epoch=transition)
    state = world.state
    phase = PruningPhase.VALIDATION_ONLY if transition else PruningPhase.ACTIVE_PRUNING
    assert q.phase_of(state) is phase
    entry = replace(state.checkpoints.newest, epoch=state.pruning.last_epoch + 1, batch=3, reason=reason)
    begun = q.due_cycle(state, entry)

    assert (begun is not None) is is_due
    if begun is not None:
        assert (begun.checkpoint, begun.epoch, begun.phase) == (entry.id, state.pruning.last_epoch, phase)


def test_a_checkpoint_from_before_the_newest_order_is_not_analysed():
    """It was committed after a compaction that it does not contain: its units would not fit."""
    world = analysed(transition_epoch=0, window_steps=1)
    tick_until(world, lambda: world.state.pruning.past and not q.why_busy(world.state), "masks that passed")
    state = world.state
    number, epoch = state.pruning.past[-1].number, state.pruning.last_epoch + 2
    due = [
        q.due_cycle(state, replace(state.checkpoints.newest, epoch=epoch, orders=orders))
        for orders in (number - 1, number, None)
    ]

    assert [one is not None for one in due] == [False, True, True]


def test_an_order_to_analyse_asks_for_a_newer_checkpoint():
    """The refusal says how to get one."""
    world = analysed(transition_epoch=0, window_steps=1)
    tick_until(world, lambda: world.state.pruning.past and not q.why_busy(world.state), "masks that passed")
    state = world.state
    *older, newest = state.checkpoints.catalogue
    outdated = (*older, replace(newest, orders=state.pruning.past[-1].number - 1))
    refused = q.analysis_to_begin(replace(state, checkpoints=replace(state.checkpoints, catalogue=outdated)))

    assert "is from before the newest change of masks or model; `tolaria checkpoint`" in refused.why


def test_a_checkpoint_names_the_newest_importance():
    """The order has its file; before the first analysis there is none."""
    world, taken = PrunedWorld(1, epochs=9, prune=replace(PLAN, transition_epoch=100)), []
    done = world._do

    def seen(effect):
        if isinstance(effect, m.TakeCheckpoint):
            files = world.state.pruning.files
            taken.append((effect.importance, files[-1].file if files else ""))
        done(effect)

    world._do = seen
    tick_until(world, lambda: len(find(world, m.PruneAnalyzed)) > 2, "analyses")

    assert all(named == newest for named, newest in taken)
    assert taken[0][0] == ""
    assert taken[-1][0].startswith("importance/p")


def removed(*files, **policy):
    """Return the cycles whose importance is removed now, with the reasons."""
    run = replace(RunState().run, policy=m.Policy(epochs=1, **policy))
    state = replace(RunState(), run=run)
    state = replace(state, pruning=replace(state.pruning, files=files))
    decision = pruning.retain_importance(state, None, SimpleNamespace(now=SimpleNamespace(wall=NOW)))
    return [] if decision is None else [(one.cycle, one.why) for one in decision.events]


def file(cycle, days, size=10):
    return st.ImportanceFile(cycle, f"importance/p{cycle:06d}.safetensors", size, NOW - days * DAY_NS)


def test_importance_stays_for_thirty_days_and_the_newest_longer():
    """`checkpoint.importance_days`."""
    files = file(1, 40), file(2, 30), file(3, 29)

    assert removed(*files) == [(1, "it is older than 30 days"), (2, "it is older than 30 days")]
    assert removed(file(1, 400)) == []
    assert removed(*files, importance_days=35.0) == [(1, "it is older than 35 days")]


def test_the_quota_of_checkpoints_takes_the_oldest_importance_first():
    """As many as it needs; never the newest."""
    files = [file(cycle, 1) for cycle in range(1, 6)]

    assert removed(*files, quota=50) == []
    assert removed(*files, quota=35) == [(1, "the quota is 35 bytes"), (2, "the quota is 35 bytes")]
    assert [cycle for cycle, _ in removed(*files, quota=1)] == [1, 2, 3, 4]
