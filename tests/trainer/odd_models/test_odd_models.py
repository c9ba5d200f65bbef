"""P11: unusual but valid training gives the same bits under the recorder as in a plain torch loop."""

from __future__ import annotations

import pytest

from tests.trainer.odd_models import layers, parameters, passes
from tests.trainer.odd_models.harness import BATCHES, EPOCHS, Odd, different, plain, recorded

MODELS = (*parameters.MODELS, *passes.MODELS, *layers.MODELS)


@pytest.mark.sample(21)
@pytest.mark.parametrize("odd", MODELS, ids=lambda odd: odd.name)
def test_an_odd_model_ends_with_the_bits_of_a_plain_loop(odd: Odd, tmp_path):
    """Parameters, buffers, optimizer's state, every loss and norm, and the generator's state are equal."""
    alone, with_recorder = plain(odd), recorded(odd, tmp_path / "run")
    assert len(alone.losses) == EPOCHS * -(-BATCHES // odd.accumulate)
    assert different(with_recorder, alone) == []


def test_there_are_as_many_odd_models_as_are_promised():
    """Each case has a unique name."""
    names = {odd.name for odd in MODELS}
    assert len(names) == len(MODELS) >= 40
