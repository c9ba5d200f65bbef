"""Fixtures: a listening trainer for each test."""

from __future__ import annotations

import pytest

from tests.trainer.orders.listening import Listening


@pytest.fixture
def listening():
    """A listening trainer and its daemon."""
    made = Listening()
    yield made
    made.close()
