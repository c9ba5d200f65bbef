"""Fixtures of the tests of a loop of one's own."""

from __future__ import annotations

import pytest
import torch

from tests.library.loops.programs import Loop
from tests.library.test_library import EPOCHS


@pytest.fixture(autouse=True)
def one_thread():
    """A plain loop computes with as many threads as the run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The undisturbed loop."""
    loop = Loop(tmp_path_factory.mktemp("calm") / "run").go()
    assert (loop.run.result.phase, loop.seen, loop.counted) == ("completed", [1, 2, 3], [True] * EPOCHS)
    return loop
