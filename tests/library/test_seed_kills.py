"""A run with seeds, killed around its moves: it ends as one that nothing killed, with its moves at the same steps.

A kill is SIGKILL at a named point: before a move is judged, when the new module is in its slot, when the move is made
and not answered, and while its answer, a checkpoint or a restore is under way.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.everyday.killed import Kill, Program
from tests.library.seeds import PLAN, Gardener, pieces, train
from tests.library.test_detection import events_of, of
from tolariad.core.checkpoints import words as ck
from tolariad.core.rates import words as lr
from tolariad.core.seeds import words as sd
from tolariad.core.seeds.stages import Stage

PROGRAM = str(Path(__file__).parent / "seed_program.py")
OPTIONS = {"rollback": {"fast_path_enabled": False}, "ema": {"decay": 0.9}}
FREEING = (Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT)
# Of the moves that the plan orders, in their order.
ORDERED = [PLAN[step] for step in sorted(PLAN)]
# How often a point is passed at most, in a run that is begun once.
PASSES = {
    "seed_move": 9,
    "seed_planted": 2,
    "seed_moved": 9,
    "boundary": 24,
    "gate": 20,
    "step": 20,
    "capture": 3,
    "checkpoint_file": 12,
    "publish": 3,
}
# Points that every start passes, because it restores a checkpoint and takes one at its end.
ANEW = {"restore": 1, "capture": 1, "checkpoint_file": 3, "manifest": 1, "publish": 1}


def killed(tmp_path, template, kills):
    """Carry out the run with these kills; compare it with one whose orders were given at the same steps."""
    program = Program(tmp_path / "killed", template, PROGRAM)
    program.carry_out(kills)
    run_dir = tmp_path / "killed" / "run"
    events = events_of(run_dir)
    acted = [one for one in of(events, sd.SeedMoved) if one.stage not in FREEING]
    assert len(acted) == len(ORDERED), "each order acted once"
    plan = {}
    for one, command in zip(acted, ORDERED, strict=True):
        plan.setdefault(one.applied_before_step - 1, []).append(command)
    train(tmp_path / "calm", Gardener(plan), **OPTIONS)

    assert pieces(run_dir) == pieces(tmp_path / "calm")
    assert all(one.first_difference is None for one in of(events, ck.RerunFinished))
    assert of(events, ck.CheckpointUnfit) == []
    assert of(events, lr.LrViolationDetected) == []
    return events


@pytest.mark.parametrize(
    "kills",
    [
        [Kill("seed_planted", 1, 0), Kill("seed_moved", 3, 0), Kill("seed_move", 4, 0)],
        [Kill("seed_moved", 6, 0), Kill("restore", 1, 0), Kill("publish", 1, 0)],
    ],
)
def test_a_run_killed_around_moves_ends_as_one_that_was_not(tmp_path, template, kills):
    """The second and third start repeat the moves that the journal holds, and obey those that wait."""
    killed(tmp_path, template, kills)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(60))
def test_a_run_killed_at_drawn_points_ends_as_one_that_was_not(tmp_path, template, number, seed):
    """One to three kills, each at a drawn point; the point of the first is dealt out evenly."""
    draw = random.Random(f"{seed} {number}")
    first = list(PASSES)[number % len(PASSES)]
    kills = [Kill(first, draw.randint(1, PASSES[first]), draw.randrange(2000))]
    for _ in range(draw.randrange(3)):
        point = draw.choice(list(ANEW))
        kills.append(Kill(point, draw.randint(1, ANEW[point]), draw.randrange(1000)))
    print(f"seed {seed}, run {number}: {kills}")
    killed(tmp_path, template, kills)
