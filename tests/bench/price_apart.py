"""Single steps of one loop in a process of its own: `MODE FOLDER STEPS SEED`, MODE bare or a `journal.sync`.

Prints microseconds of wall time from one batch asked for to the next, as JSON. The first steps are left out, and the
first of each block: every block of 280 steps lies elsewhere in memory.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.bench import price_loops
from tests.bench.price_task import MODELS, PriceTask, block_data, layers
from tolariad import Tolaria, config
from tolariad.library import attached
from tolariad.trainer import loop

BATCH, BLOCK, SETTLED = 64, 280, 2
RATE = 1e-5


class Timed:
    """Notes when each batch is asked for."""

    def __init__(self) -> None:
        self.blocks: list[list[int]] = []

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        at: list[int] = []
        self.blocks.append(at)
        for batch in batches:
            at.append(time.perf_counter_ns())
            yield batch
        at.append(time.perf_counter_ns())

    def steps_us(self) -> list[float]:
        return [(after - before) / 1e3 for at in self.blocks[SETTLED:] for before, after in list(pairwise(at))[1:]]


def bare(blocks: int, draw: random.Random) -> Timed:
    """The loop that everybody writes first."""
    torch.set_num_threads(1)
    timed, data, model = Timed(), block_data(BATCH, BLOCK), layers(*MODELS["mlp"])
    trained = price_loops.Bare(lambda: (model, torch.optim.AdamW(model.parameters(), RATE)))
    for _ in range(blocks):
        price_loops.moved(trained.model, trained.optimizer, draw)
        trained(timed(price_loops.index_batches(data, BATCH)))
    return timed


def recorded(sync: str, folder: Path, blocks: int, draw: random.Random) -> Timed:
    """The same steps through `Tolaria.train`."""
    timed = Timed()

    class Watched(loop.Trainer):
        """The trainer as it is; only its feed is wrapped."""

        def __init__(self, setup: Any, *given: Any, **more: Any) -> None:
            super().__init__(setup, *given, **more)
            feed = setup.train.epoch

            def epoch(*at: Any) -> Iterator[Any]:
                price_loops.moved(setup.model, setup.optimizer, draw)
                return timed(feed(*at))

            setup.train.epoch = epoch

    attached.Trainer = Watched  # type: ignore[misc]
    options = {
        "rng_seed": 1,
        "torch_threads": 1,
        "batch_size": BATCH,
        "learning_rate": {"base_lr": RATE, "warmup_epochs": 0},
        "checkpoint_interval_epochs": 1_000_000,
        "checkpoint": {"interval_s": 1_000_000},
        "budgets": {"act": False},
        "journal": {"sync": sync, "segment_bytes": 100_000_000},
        "task_options": {"model": "mlp", "steps": BLOCK},
    }
    settings = config.load({"tolaria": options})
    task = PriceTask()
    train = Tolaria(settings, run_dir=folder).train
    train(task.model(settings), task.train_data(settings), None, blocks, task=task)
    return timed


if __name__ == "__main__":
    mode, folder_, steps, seed = sys.argv[1:]
    count, drawn = int(steps) // BLOCK + SETTLED, random.Random(int(seed))
    found = bare(count, drawn) if mode == "bare" else recorded(mode, Path(folder_), count, drawn)
    json.dump(found.steps_us(), sys.stdout)
