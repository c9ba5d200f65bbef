"""Losses that draw from Python's and NumPy's generators are exact across deaths, skips and re-runs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from torch.nn import functional

from tests.library.small import EPOCHS, bits, loaders, made, network
from tests.library.test_detection import poisoned
from tests.recorded import events_of, of, sound
from tolariad.core import messages as m

# No checkpoint between the epochs' ends: whoever dies in the second or third runs its skip again, or begins after it.
EVERY = {"checkpoint_interval_epochs": 2}


def train(run_dir, *, die_at=None):
    """Train with an invalid sample in each epoch. Return bits and events."""
    model = network()

    class Drawing:
        def loss(self, model, batch):
            inputs, targets = batch
            # A gauss holds back its second number: state beside the generator's own.
            noise = random.gauss(0.0, 0.1) + random.random() * 0.1 + np.random.standard_normal() * 0.1
            return functional.cross_entropy(model(inputs + noise), targets)

        def on_step_end(self, model, step):
            if step == die_at:
                raise InterruptedError

    poison = loaders(poisoned(float("nan")), validated=False)
    made(run_dir, **EVERY).train(model, *poison, EPOCHS, task=Drawing())
    return bits(model), events_of(run_dir)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return train(tmp_path_factory.mktemp("calm") / "run")


def losses(events):
    return [(one.step, one.loss) for one in of(events, m.StepCompleted)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", [3, 9, 13, 17, 20])
def test_a_run_that_dies_resumes_to_the_bit(tmp_path, calm, at):
    """Deaths before and after a skip, in each epoch: each re-run draws the same numbers, for skipped batches too."""
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", die_at=at)
    parameters, events = train(tmp_path / "run")

    assert [one.reason for one in of(calm[1], m.StepSkipped)] == [m.SkipReason.NON_FINITE] * EPOCHS
    sound(tmp_path / "run")
    assert parameters == calm[0]
    assert losses(events) == losses(calm[1])


def test_some_of_them_ran_a_skip_again(tmp_path, calm):
    """Without a checkpoint between a skip and a later death, the restart draws for the skipped batch again."""
    skipped = [one.step for one in of(calm[1], m.StepSkipped)]
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", die_at=skipped[0] + 1)
    parameters, events = train(tmp_path / "run")

    assert sum(one.skipped for one in of(events, m.RerunFinished)) == 1
    assert parameters == calm[0]
