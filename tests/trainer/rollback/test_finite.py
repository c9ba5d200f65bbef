"""The check of a snapshot for values that are not finite."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tolariad.core.calc.seeds.ledger import germinated
from tolariad.core.calc.seeds.stages import PLANTED, Stage
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.rollback.snapshots import _counts, _is_finite, _not_finite

SEEDED = Path(__file__).parents[1] / "tasks" / "seeded.py"

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_agrees_on_every_place_and_kind(dtype, seed):
    """One value anywhere is found, also two that cancel in a sum, and in non-contiguous memory."""
    torch.manual_seed(seed)
    for size in (1, 7, 64, 1_000, 70_000):
        whole = torch.randn(size, 2).to(dtype)
        for tensor in (whole, whole[:, 0], whole.t()):
            assert _is_finite(tensor)
        for planted in ((math.nan,), (math.inf,), (-math.inf,), (math.inf, -math.inf), (math.nan, math.inf)):
            sick = whole.clone()
            places = torch.randint(0, size, (len(planted),))
            sick[places, 1] = torch.tensor(planted, dtype=dtype)
            assert not _is_finite(sick), (size, planted, places)
            assert _is_finite(sick[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_beyond_all_is_no_value_beyond_all(dtype):
    """Very large finite weights are accepted."""
    largest = torch.full((1_000,), torch.finfo(dtype).max, dtype=dtype)
    assert not largest.sum().isfinite()
    assert _is_finite(largest)
    assert _is_finite(-largest)


STAGES = [stage for stage in Stage if stage in PLANTED]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", ["parameter", "moment"])
def test_a_seed_counts_from_blending_on(configured, stage, what):
    """Before, the host does not depend on it: a sick seed does not keep the run from going back."""
    setup = build(configured(f"{SEEDED}:Seeded", epochs=1, batch_size=5, ema={"decay": 0.9}))
    entry = germinated("inner", 1, blueprint="bottleneck", parameters={}, example=(5, 8), dtype="float32")
    setup.ledger.order(*entry, before_step=1)
    plot = setup.garden.plots["inner"]
    plot.enter(stage, 0, blend_steps=5)
    parameter = plot.parameters[0]
    parameter.grad = torch.zeros_like(parameter)
    plot.owner.optimizer.step()
    assert not found(setup)

    sick = parameter if what == "parameter" else plot.owner.optimizer.state[parameter]["exp_avg"]
    with torch.no_grad():
        sick.view(-1)[1] = math.inf
    name = found(setup)
    heard = stage >= Stage.BLENDING
    assert bool(name) == heard
    assert not heard or name.startswith("model.slot.seed." if what == "parameter" else "owner.seed.inner.")


def found(setup):
    """Return what a snapshot of this state would be refused for."""
    return _not_finite(capture(setup, Position(step=1, epoch=1, batch=1)), _counts(setup))
