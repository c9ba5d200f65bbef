"""Single steps of loops in one process: `LOOPS SYNC FOLDER STEPS SEED`, LOOPS bare, recorded, or both in turn.

Prints microseconds of wall time from one batch asked for to the next, by loop, as JSON. The first steps are left out,
and the first of each block: every block of 280 steps lies elsewhere in memory.
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
from torch.optim.optimizer import _global_optimizer_pre_hooks

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


class Bare:
    """The loop that everybody writes first, block by block."""

    def __init__(self, draw: random.Random) -> None:
        torch.set_num_threads(1)
        self.timed, self._draw, self._data = Timed(), draw, block_data(BATCH, BLOCK)
        model = layers(*MODELS["mlp"])
        self._loop = price_loops.Bare(lambda: (model, torch.optim.AdamW(model.parameters(), RATE)))

    def block(self) -> None:
        price_loops.moved(self._loop.model, self._loop.optimizer, self._draw)
        self._loop(self.timed(price_loops.index_batches(self._data, BATCH)))


def recorded(sync: str, folder: Path, blocks: int, draw: random.Random, beside: Bare | None) -> Timed:
    """The same steps through `Tolaria.train`; before each block one of the loop `beside`."""
    timed = Timed()

    class Watched(loop.Trainer):
        """The trainer as it is; only its feed is wrapped."""

        def __init__(self, setup: Any, *given: Any, **more: Any) -> None:
            super().__init__(setup, *given, **more)
            feed = setup.train.epoch

            def epoch(*at: Any) -> Iterator[Any]:
                if beside is not None:
                    hooks = dict(_global_optimizer_pre_hooks)
                    # A loop by itself has no guard that looks at every optimizer of the process.
                    _global_optimizer_pre_hooks.clear()
                    beside.block()
                    _global_optimizer_pre_hooks.update(hooks)
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
    loops, sync_, folder_, steps, seed = sys.argv[1:]
    count, drawn, found = int(steps) // BLOCK + SETTLED, random.Random(int(seed)), dict[str, list[float]]()
    plain = Bare(drawn) if loops != "recorded" else None
    if loops != "bare":
        found["recorded"] = recorded(sync_, Path(folder_), count, drawn, plain).steps_us()
    elif plain is not None:
        for _ in range(count):
            plain.block()
    if plain is not None:
        found["bare"] = plain.timed.steps_us()
    json.dump(found, sys.stdout)
