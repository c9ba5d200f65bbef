"""Fixtures of the tests of a loop of one's own."""

from __future__ import annotations

import pytest

from tests.library.loops.programs import Loop
from tests.library.small import EPOCHS


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The undisturbed loop."""
    loop = Loop(tmp_path_factory.mktemp("calm") / "run").go()
    assert (loop.run.result.phase, loop.seen, loop.counted) == ("completed", [1, 2, 3], [True] * EPOCHS)
    return loop
