"""A run with masks, killed around its orders: it ends as one that nothing killed, with its orders at the same steps.

A kill is SIGKILL at a named point. Points are: before an order is judged, when the model is cut and its optimizers are
not, when an order acted and is not answered. Others are while its answer, a checkpoint, a restore or a rollback is
under way.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import order_events
from tests.everyday.killed import ANEW, Kill, Program, later_kills
from tests.library.pruning import ACTED, FULL, PLAN, Prunes, acted, train
from tests.recorded import of, pieces, sound, standing
from tolariad.core import messages as m

PROGRAM = str(Path(__file__).parent / "prune_program.py")
OPTIONS = {**FULL, "ema": {"decay": 0.9}}
ORDERED = [PLAN[step] for step in sorted(PLAN)]
# How often a point is passed at most, in a run that is begun once.
PASSES = {
    "prune_order": 6,
    "prune_cut": 1,
    "prune_acted": 6,
    "boundary": 32,
    "gate": 28,
    "step": 28,
    "capture": 4,
    "checkpoint_file": 16,
    "publish": 4,
}
# The first checkpoint lies before these passes: a start after a kill in it has nothing to restore.
LEAST = {"capture": 2, "checkpoint_file": 6, "publish": 2}


def plan_of(found):
    """Return a plan whose orders act at the same steps. A death may lose the record of a step, but no order.

    An order that was given after that step then acts before it, with the order before.
    """
    plan = {}
    for one, planned in zip(found, ORDERED, strict=True):
        plan.setdefault(one.applied_before_step - 1, []).append(planned)
    return plan


def killed(tmp_path, template, kills, *arguments):
    """Carry out the run with these kills; compare it with one whose orders were given at the same steps."""
    program = Program(tmp_path / "killed", template, PROGRAM, *arguments)
    program.carry_out(kills)
    run_dir = tmp_path / "killed" / "run"
    events = sound(run_dir)
    found = standing(events, *ACTED)
    assert len(found) == len(ORDERED), "each order acted once"
    cycles = [one.order.cycle for one in found if isinstance(one, order_events.acted(m.MaskUnits))]
    train(tmp_path / "calm", Prunes(plan_of(found), cycles=cycles), **OPTIONS)
    assert [one.applied_before_step for one in acted(tmp_path / "calm")] == [one.applied_before_step for one in found]

    assert pieces(run_dir) == pieces(tmp_path / "calm")
    return events


@pytest.mark.torture
def test_a_run_killed_around_orders_ends_as_one_that_was_not(tmp_path, template):
    """Later starts repeat the orders that the journal holds, and obey those that wait.

    Kills: before the first masks are judged; when the release acted and is not answered; during the compaction. Later
    ones come in the restore that repeats it, and in a checkpoint of the compacted model.
    """
    points = [("prune_order", 1), ("prune_acted", 3), ("prune_cut", 1), ("restore", 1), ("publish", 1)]
    killed(tmp_path, template, [Kill(point, passes, 0) for point, passes in points])


def test_a_rollback_over_a_compaction_is_completed_after_a_kill(tmp_path, template):
    """The next start begins at the target, whose model is wide and masked."""
    events = killed(tmp_path, template, [Kill("rollback_commit", 1, 0), Kill("prune_acted", 1, 0)], "back")
    assert [one.step for one in of(events, m.RolledBack)] == [24]


@pytest.mark.torture
@pytest.mark.parametrize("point", ["rollback_prepare", "rollback_commit", "rollback_confirm"])
@pytest.mark.parametrize("number", range(5))
def test_a_rollback_over_a_compaction_may_be_killed_anywhere(tmp_path, template, point, number, seed):
    """In each phase, and once more at a drawn point of the next start."""
    draw = random.Random(f"{seed} {point} {number}")
    second = draw.choice(["prune_order", "prune_acted", *ANEW])
    kills = [Kill(point, 1, draw.randrange(1000)), Kill(second, 1, draw.randrange(1000))]
    print(f"seed {seed}, run {number}: {kills}")
    killed(tmp_path, template, kills, "back")


@pytest.mark.torture
@pytest.mark.parametrize("number", range(60))
def test_a_run_killed_at_drawn_points_ends_as_one_that_was_not(tmp_path, template, number, seed):
    """One to three kills, each at a drawn point; the point of the first is dealt out evenly."""
    draw = random.Random(f"{seed} {number}")
    first = list(PASSES)[number % len(PASSES)]
    kills = [Kill(first, draw.randint(LEAST.get(first, 1), PASSES[first]), draw.randrange(2000))]
    kills += later_kills(draw)
    print(f"seed {seed}, run {number}: {kills}")
    killed(tmp_path, template, kills)
