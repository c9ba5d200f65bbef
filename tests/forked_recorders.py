"""Fixtures for a conftest whose tests train in their own process: recorders that start quickly."""

from __future__ import annotations

import pytest

from tests import recorders


@pytest.fixture(scope="module", autouse=True)
def recorders_are_forks():
    """Start recorders quickly, those of fixtures too that serve a whole module."""
    with pytest.MonkeyPatch.context() as patch:
        recorders.install(patch.setattr)
        yield
        recorders.end()


@pytest.fixture(autouse=True)
def a_recorder_of_its_own():
    """What this test replaces is in its recorder, and in none of another test."""
    recorders.end()
    yield
    recorders.end()
