"""Seeds in a run: their moves act at their steps, and a run that was cut short ends as one that was not, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tolariad.core.seeds.stages import Stage
from tolariad.core.seeds.words import MoveSeed
from tolariad.core.steps.script_words import ScriptOrder

TASK = f"{Path(__file__).parents[1] / 'tasks' / 'seeded.py'}"
STEPS = 10  # of an epoch, at five samples a batch
EPOCHS = 3
_EXAMPLE = (5, 8)
# Slot, stage, and the update that is the first one with it.
MOVES = (
    ("inner", Stage.GERMINATED, 3),
    ("inner", Stage.TRAINING, 4),
    ("outer", Stage.GERMINATED, 6),
    ("outer", Stage.TRAINING, 6),
    ("inner", Stage.BLENDING, 9),
    ("outer", Stage.CULLED, 13),
    ("inner", Stage.SHADOWING, 16),
    ("inner", Stage.PROBATIONARY, 19),
    ("outer", Stage.DORMANT, 21),
    ("inner", Stage.FOSSILIZED, 22),
    ("outer", Stage.GERMINATED, 24),
    ("outer", Stage.TRAINING, 25),
)


def orders(moves=MOVES, blueprint="bottleneck"):
    """The orders of a script: each acts before its update."""
    found, germinations, germinated = [], 0, {}
    for number, (slot, stage, before) in enumerate(moves, 1):
        is_new = stage is Stage.GERMINATED
        if is_new:
            germinations += 1
            germinated[slot] = germinations
        order = MoveSeed(
            slot=slot,
            stage=stage,
            number=germinated[slot],
            blueprint=blueprint if is_new else "",
            blend_steps=5 if stage is Stage.BLENDING else 0,
            example=_EXAMPLE if is_new else (),
            dtype="float32" if is_new else "",
            cause=100 + number,
        )
        found.append(ScriptOrder(before, 0, number, order))
    return tuple(found)


@pytest.fixture
def seeded(configured):
    return lambda name="Seeded", **more: configured(
        f"{TASK}:{name}", epochs=EPOCHS, batch_size=5, **{"ema": {"decay": 0.9}, **more}
    )


@pytest.fixture
def trained(daemon_in, seeded):
    """Train with the moves of a script; each cut ends a trainer after that step. Return the daemon."""

    def train(name, *cuts, task="Seeded", moves=MOVES, **more):
        daemon = daemon_in(name, EPOCHS, script_orders=orders(moves))
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(seeded(task, **more))
            assert daemon.last_step >= cut
        daemon.train_here(seeded(task, **more))
        assert daemon.ended
        return daemon

    return train


def test_every_stage_of_a_seed_is_reached(daemon_in, seeded):
    """After the last step one seed is part of the model, and a second one has taken the culled one's place."""
    daemon = daemon_in("run", EPOCHS, script_orders=orders())
    setup = daemon.train_here(seeded())
    plots = setup.garden.plots
    assert {name: plot.stage for name, plot in plots.items()} == {
        "inner": Stage.FOSSILIZED,
        "outer": Stage.TRAINING,
    }
    assert plots["inner"].alpha == 1.0
    assert [owner.name for owner in setup.owners] == ["host", "seed.inner", "seed.outer"]
    assert "seeds-00000.safetensors" in daemon.files("end")


@pytest.mark.parametrize("cuts", [(2,), (5,), (10, 12), (13, 20), (8, 18, 23), (26,)])
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(trained, cuts):
    """Its checkpoints hold seeds that train, blend and are fossilised; each trainer builds them again."""
    assert trained("cut", *cuts).files("end") == trained("calm").files("end")
