"""The architecture ledger in the fold: which changes are in force, which a rollback undoes, which a re-run repeats."""

from __future__ import annotations

import pytest

from tests.core.simulate import World, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.steps.branches import Branches, Fork
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, fold

# Steps 1 to 8 are the first epoch: a change after step 3, one after the first epoch's validation, one after step 11.
CHANGES = (
    m.ArchitectureChanged(number=1, name="widen", arguments='{"by": 8}', applied_before_step=4),
    m.ArchitectureChanged(number=2, name="append", arguments="{}", applied_before_step=9, epoch_ended=1),
    m.ArchitectureChanged(number=3, name="widen", arguments='{"by": 2}', applied_before_step=12),
)
# Step, epoch and batch of a place, and how many of the changes it holds.
PLACES = [
    (0, 1, 0, 0),
    (2, 1, 2, 0),
    (3, 1, 3, 1),
    (8, 1, 8, 1),
    (8, 2, 0, 2),
    (10, 2, 2, 2),
    (11, 2, 3, 3),
    (16, 3, 0, 3),
]


def rolled_back(step, epoch, batch):
    return m.RolledBack(rollback="r1", checkpoint="c1", branch=1, parent=0, step=step, epoch=epoch, batch=batch)


def names(state):
    return [(one.name, one.applied_before_step) for one in state.architecture.changes]


@pytest.mark.parametrize(("step", "epoch", "batch", "held"), PLACES)
def test_a_rollback_leaves_the_changes_that_its_target_holds(step, epoch, batch, held):
    """A checkpoint of an epoch's last step holds no change of that epoch's end; one of the end does."""
    state = fold(RunState(), (*CHANGES, rolled_back(step, epoch, batch)))
    assert names(state) == [(one.name, one.applied_before_step) for one in CHANGES[:held]]
    assert [st.is_held_at(one.applied_before_step, one.epoch_ended, step, epoch) for one in CHANGES].count(True) == held


@pytest.mark.parametrize(("step", "epoch", "batch", "held"), PLACES)
def test_a_script_has_the_changes_after_its_checkpoint(step, epoch, batch, held):
    """In order, with what the task needs to make them again."""
    ref = m.CheckpointRef(id="c1", step=step, epoch=epoch, batch=batch, manifest="00")
    script = q.script_from_journal(CHANGES, ref)
    assert [(one.number, one.name, one.arguments, one.before_step, one.epoch_ended) for one in script.changes] == [
        (one.number, one.name, one.arguments, one.applied_before_step, one.epoch_ended) for one in CHANGES[held:]
    ]
    assert len(q.script_from_journal(CHANGES, None).changes) == len(CHANGES)


@pytest.mark.parametrize(("step", "epoch", "batch", "held"), PLACES)
def test_a_script_has_no_change_of_a_branch_that_was_left(step, epoch, batch, held):
    """Those before the fork stay; those of the new branch count on from them."""
    branches = Branches((Fork(1, 0, step, epoch, batch, 9),))
    later = m.ArchitectureChanged(number=held + 1, name="other", arguments="{}", applied_before_step=20)
    script = q.script_from_journal((*CHANGES, rolled_back(step, epoch, batch), later), None, 0, branches)
    assert [one.number for one in script.changes] == list(range(1, held + 2))
    assert script.changes[-1].name == "other"


def report(number):
    return m.ArchitectureReport(number=number, name="widen", arguments="{}", applied_before_step=5)


def test_the_next_change_is_recorded_and_any_other_number_ends_the_trainers_trust():
    """A trainer whose ledger is another one than the journal's must not go on."""
    world = until(World(0), 4)
    first = decide(world.state, report(1), m.Now(1, 1))
    assert [type(one) for one in first.events] == [m.ArchitectureChanged]
    for number in (1, 3):
        (refused,) = decide(first.state, report(number), m.Now(2, 2)).events
        assert isinstance(refused, m.ReportRefused)
        assert "the journal holds 1" in refused.why


def test_the_ledger_is_bounded_and_part_of_the_digest():
    """No more than CHANGES_MAX; two runs with other arguments are two runs."""
    world = until(World(0), 4)
    state = world.state
    for number in range(1, st.CHANGES_MAX + 1):
        state = decide(state, report(number), m.Now(number, number)).state
    (refused,) = decide(state, report(st.CHANGES_MAX + 1), m.Now(9, 9)).events
    assert (len(state.architecture.changes), type(refused)) == (st.CHANGES_MAX, m.ReportRefused)
    digests = {fold(RunState(), (one,)).progress.digest for one in CHANGES}
    assert len(digests | {RunState().progress.digest}) == len(CHANGES) + 1
