"""A run with seeds, killed around its moves: it ends as one that nothing killed, with its moves at the same steps.

A kill is SIGKILL at a named point. Points are: before a move is judged, when a module is in its slot or out of it, when
a move is made and unanswered. Others are while its answer, a snapshot, a checkpoint, a restore or a rollback is under
way.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.everyday.killed import ANEW, Kill, Program, later_kills
from tests.library.seed_kinds import KINDS, SPACED
from tests.library.seeds import Gardener, line_of, train
from tests.recorded import of, pieces, sound
from tolariad.core import messages as m
from tolariad.core.state.run_state import RunState, fold

PROGRAM = str(Path(__file__).parent / "seed_program.py")
# How often a run passes a point, if it is begun once. The plan orders nine moves, and three follow by themselves.
OF_SEEDS = {"seed_move": 12, "seed_planted": 2, "seed_removed": 1, "seed_moved": 12}
OF_STEPS = {"boundary": 24, "gate": 20, "step": 20}
OF_FILES = {"validation": 4, "capture": 3, "checkpoint_file": 12, "manifest": 3, "publish": 3}
OF_MEMORY = {"snapshot": 5, "snapshot_taken": 5}
OF_ROLLBACK = {"rollback_prepare": 1, "rollback_commit": 1, "rollback_confirm": 1}


@pytest.fixture(scope="module")
def calm_of(tmp_path_factory):
    """Return the last checkpoint of a run of a kind that nobody killed, with orders at these steps."""
    known = {}

    def calm(kind, plan):
        key = f"{kind} {plan}"
        if key not in known:
            run_dir = tmp_path_factory.mktemp("calm") / "run"
            train(run_dir, Gardener(plan), **KINDS[kind].options)
            known[key] = pieces(run_dir)
        return known[key]

    return calm


def killed(tmp_path, template, calm_of, kind, kills):
    """Carry out a run of this kind with these kills; compare it with one whose orders were given at the same steps."""
    Program(tmp_path / "killed", template, PROGRAM, kind).carry_out(kills)
    run_dir = tmp_path / "killed" / "run"
    events = sound(run_dir)
    state = fold(RunState(), events)
    assert state.trainer.incarnation == len(kills) + 1

    assert pieces(run_dir) == calm_of(kind, line_of(state, SPACED))
    assert len(of(events, m.RolledBack)) == (KINDS[kind].back is not None)
    return events


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("disk", [Kill("seed_planted", 1, 0), Kill("seed_moved", 3, 0), Kill("seed_move", 4, 0)]),
        ("back", [Kill("seed_removed", 1, 0), Kill("rollback_commit", 1, 0), Kill("seed_removed", 1, 0)]),
    ],
)
def test_a_run_killed_around_moves_ends_as_one_that_was_not(tmp_path, template, calm_of, kind, kills):
    """The later starts repeat the moves that the journal holds, and obey those that wait."""
    killed(tmp_path, template, calm_of, kind, kills)


def _first_kills():
    """Yield a kill at every pass of every point that each kind has; of the points of steps every fifth but once."""
    for kind, one in KINDS.items():
        points = {
            **OF_SEEDS,
            **OF_FILES,
            **(OF_MEMORY if "memory" in kind else {}),
            **(OF_ROLLBACK if one.back else {}),
        }
        for point, times in {**points, **OF_STEPS}.items():
            for number in range(1, times + 1, 5 if point in OF_STEPS else 1):
                yield kind, point, number


@pytest.mark.torture
@pytest.mark.parametrize(("kind", "point", "times"), list(_first_kills()))
def test_a_run_killed_at_every_point_ends_as_one_that_was_not(tmp_path, template, calm_of, seed, kind, point, times):
    """One kill at this pass of this point, and up to two more, each at a drawn point."""
    draw = random.Random(f"{seed} {kind} {point} {times}")
    kills = [Kill(point, times, draw.choice((0, draw.randrange(2000))))]
    # During the start's own checkpoint there is none to restore.
    is_early = times <= 5 and point in ("boundary", *OF_FILES)
    kills += later_kills(draw, tuple(ANEW)[is_early:])
    print(f"seed {seed}, {kind}, {len(kills)} kills: {kills}")
    killed(tmp_path, template, calm_of, kind, kills)
