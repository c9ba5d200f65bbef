"""Every example's configuration loads, and its task trains: the loss after some steps is below the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tolariad.config import load
from tolariad.core.calc.settings.rules import resolved_json
from tolariad.trainer.build import build
from tolariad.trainer.step.gradients import forward_backward
from tolariad.trainer.step.validate import validate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["own_mlp", "vision"])
def test_an_example_trains(name):
    """As its configuration says, for a few steps, with its workers, and validates."""
    settings = load(ROOT / "examples" / name / "config.yaml")
    setup = build(resolved_json(replace(settings, device="cpu")))
    losses = []
    setup.rates.restored(None, step=setup.steps_per_epoch, epoch=2)  # after the warm-up
    for step, batch in enumerate(setup.train.epoch(1, 0), 1):
        losses.append(forward_backward(setup, [batch]).loss)
        setup.optimizer.step()
        setup.rates.advance(2)
        setup.optimizer.zero_grad()
        if step == 25:
            break
    assert sum(losses[-5:]) < sum(losses[:5])
    assert setup.validation is not None
    found = validate(setup, lambda: None)
    assert found.samples in {800, 240}
    assert found.means["loss"] > 0
    setup.train.end_workers(), setup.validation.end_workers()
