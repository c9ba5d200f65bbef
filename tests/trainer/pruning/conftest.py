"""One thread: these models are small, and on busy cores threads wait for each other longer than they compute."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.pruning.in_a_run import TASK


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def configure(configured):
    """Make a resolved configuration of a task in pruned.py, by the name of its class."""
    return lambda name="Pruned", **more: configured(
        f"{TASK}:{name}",
        **{"batch_size": 5, "ema": {"decay": 0.9}, "audit": {"every_steps": 1}, **more},
    )
