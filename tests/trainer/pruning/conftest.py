"""Configurations of tasks that are pruned."""

from __future__ import annotations

import pytest

from tests.trainer.pruning.in_a_run import TASK


@pytest.fixture
def configure(configured):
    """Make a resolved configuration of a task in pruned.py, by the name of its class."""
    return lambda name="Pruned", **more: configured(
        f"{TASK}:{name}",
        **{"batch_size": 5, "ema": {"decay": 0.9}, "audit": {"every_steps": 1}, **more},
    )
