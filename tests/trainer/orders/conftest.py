"""One listening trainer a test."""

from __future__ import annotations

import pytest

from tests.trainer.orders.listening import Listening


@pytest.fixture
def listening():
    """A trainer that listens, and the daemon that it listens to."""
    made = Listening()
    yield made
    made.close()
