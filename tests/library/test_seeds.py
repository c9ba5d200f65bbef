"""Seeds in a recorded run: it resumes and rolls back across their moves, to the bit of the run that nothing disturbed."""

from __future__ import annotations

import pytest

from tests.daemon.harness import within
from tests.library.inside import state_of
from tests.library.seeds import PLAN, Gardener, given_in, pieces, train
from tests.library.test_detection import events_of, of
from tests.library.test_library import bits
from tolariad.core.checkpoints import words as ck
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.seeds import words as sd
from tolariad.core.seeds.stages import Stage

FULL = {"rollback": {"fast_path_enabled": False}}
VARIANTS = {
    "plain": FULL,
    "average": {**FULL, "ema": {"decay": 0.9}},
    "accumulate": {**FULL, "accumulate": 2, "seeds": {"blend_steps": 2, "gates": {"min_steps": 1}}},
    "own optimizer": {**FULL, "seeds": {"optimizer": {"name": "sgd", "momentum": 0.9}, "lr": 0.05, "blend_steps": 4}},
    "in memory": {"ema": {"decay": 0.9}, "snapshots": {"every": 1, "watch_steps": 1}},
}
# Of the moves that the plan orders: slot, stage, first update.
MOVES = [
    ("a", Stage.GERMINATED, 3),
    ("a", Stage.TRAINING, 4),
    ("b", Stage.GERMINATED, 5),
    ("b", Stage.TRAINING, 6),
    ("a", Stage.BLENDING, 7),
    ("b", Stage.CULLED, 11),
    ("a", Stage.SHADOWING, 14),
    ("a", Stage.PROBATIONARY, 16),
    ("a", Stage.FOSSILIZED, 19),
]
FREEING = (Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT)


class Stop(Exception):
    """The exception that ends a trainer."""


def moves(run_dir):
    found = of(events_of(run_dir), sd.SeedMoved)
    return [(one.slot, one.stage, one.applied_before_step) for one in found if one.stage not in FREEING]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The last checkpoint of each variant's run that nothing disturbed."""
    ended = {}

    def calm_of(name):
        if name not in ended:
            run_dir = tmp_path_factory.mktemp("calm") / name.replace(" ", "-")
            train(run_dir, Gardener(), **VARIANTS[name])
            assert moves(run_dir) == MOVES
            ended[name] = pieces(run_dir)
        return ended[name]

    return calm_of


def test_a_seed_lives_from_germination_to_fossil_and_another_is_culled(tmp_path):
    """Each order acts before the next update. The kernel knows rates, slots and shapes as the trainer has them."""
    task = Gardener()
    model = train(tmp_path / "run", task, **VARIANTS["average"])
    events = events_of(tmp_path / "run")

    assert moves(tmp_path / "run") == MOVES
    assert of(events, lr.LrViolationDetected) == []
    assert of(events, sd.SeedMoveAborted) == []
    assert [one.epoch for one in of(events, sd.SeedsMeasured)] == [1, 2, 3]
    assert model[3].stage is Stage.FOSSILIZED
    assert model[6].stage is Stage.DORMANT
    assert model[6].seed is None
    assert any(name.startswith("3.seed.") for name in model.state_dict())
