"""Random models, optimizers, leaves and ranks: the bits of one rank, and of one process that accumulates."""

from __future__ import annotations

from functools import partial

import pytest

from tests.trainer.ranks.cases import by_one_process, by_ranks
from tests.trainer.ranks.groups import results
from tests.trainer.ranks.random_models import drawn


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(60))
def test_a_random_model_ends_with_the_bits_of_one_rank(number, seed, tmp_path):
    """Many kinds of parameters and layers, with and without DDP; uneven blocks; two backward passes in a leaf."""
    case, ranks = drawn(seed + number)
    print(case, ranks)
    (expected,) = results(tmp_path / "one", 1, partial(by_ranks, case))

    assert results(tmp_path / "ranks", ranks, partial(by_ranks, case)) == [expected] * ranks
    if not case.has_statistics and case.backwards == 1:
        assert by_one_process(case) == expected
