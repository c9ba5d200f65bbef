"""The number of torch threads is a setting of an exact run: sums within a layer depend on it."""

from __future__ import annotations

import pytest
import torch

from tolariad.core.calc.settings.reading import read_settings
from tolariad.trainer.process import determinism


@pytest.mark.parametrize("limit", ["", "1"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_threads_depend_on_the_leaves_and_not_on_the_ranks(monkeypatch, ranks, limit):
    """torchrun sets OMP_NUM_THREADS for several processes only. Without exact sums the ranks share the cores."""
    monkeypatch.setattr(determinism.os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    cpu = torch.device("cpu")

    def chosen(**more):
        settings = read_settings({"task": "digits", "parallel": {"ranks": ranks, **more}})
        return determinism.chosen_threads(settings, cpu, ranks)

    assert chosen(exact=True, leaves=4) == 3
    assert chosen() == (1 if limit else 12 // ranks)
