"""On a GPU: gradients meet in the host's memory, and bits do not depend on the number of ranks. Skipped without one."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch

from tests.trainer.ranks.cases import Case, by_ranks

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]


def train(model, rank, ranks, path, found):
    """Train in this process, and put the hashes into `found`."""
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    # Random numbers of a device are seeded once it is used.
    torch.cuda.init()
    mapping = os.open(path, os.O_RDWR)
    found.put(by_ranks(Case(model, device="cuda"), rank, ranks, mapping))


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer", "batch"])
def test_one_two_and_three_ranks_on_one_device_end_with_the_same_bits(model, quick_path, monkeypatch):
    """Each rank is a new process: a process that has used a device cannot be forked."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    context = multiprocessing.get_context("spawn")
    hashes = []
    for ranks in (1, 2, 3):
        path = quick_path / f"{ranks}"
        path.touch()
        found = context.Queue()
        processes = [context.Process(target=train, args=(model, rank, ranks, path, found)) for rank in range(ranks)]
        for one in processes:
            one.start()
        hashes += [found.get(timeout=300) for _ in processes]
        for one in processes:
            one.join()

    assert hashes == [hashes[0]] * 6
