"""Single steps of loops in one process: `LOOPS SYNC FOLDER STEPS SEED`.

LOOPS: bare, recorded (by `Tolaria.train`), both in turn, or daemon (recorded by `tolariad run`).

Prints microseconds from one batch asked for to the next, by loop, as JSON: of wall time, and of the thread's processor
time. The first steps are left out, and the first of each block: every block of 280 steps lies elsewhere in memory.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from tests.bench import price_loops
from tests.bench.price_task import MODELS, PriceTask, block_data, layers
from tests.daemon.harness import DaemonProcess
from tolariad import Tolaria, config, lifelines
from tolariad.library import attached
from tolariad.trainer import loop
from tolariad.trainer.__main__ import main

BATCH, BLOCK, SETTLED = 64, 280, 2
RATE = 1e-5


# In the environment of the daemon's trainer: its seed.
DRAWN = "PRICE_APART_SEED"
FOUND = "apart.json"
Steps = dict[str, list[float]]


class Timed:
    """Notes when each batch is asked for."""

    def __init__(self) -> None:
        self.blocks: list[list[tuple[int, int]]] = []

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        at: list[tuple[int, int]] = []
        self.blocks.append(at)
        for batch in batches:
            at.append((time.perf_counter_ns(), time.thread_time_ns()))
            yield batch
        at.append((time.perf_counter_ns(), time.thread_time_ns()))

    def steps_us(self) -> Steps:
        pairs = [pair for at in self.blocks[SETTLED:] for pair in list(pairwise(at))[1:]]
        clocks = {"wall": 0, "cpu": 1}
        return {name: [(after[of] - before[of]) / 1e3 for before, after in pairs] for name, of in clocks.items()}


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


def watched(timed: Timed, draw: random.Random, beside: Bare | None = None) -> type[loop.Trainer]:
    """The trainer as it is; only its feed is wrapped. Before each block comes one of the loop `beside`."""

    class Watched(loop.Trainer):
        def __init__(self, setup: Any, *given: Any, **more: Any) -> None:
            super().__init__(setup, *given, **more)
            feed: Callable[..., Iterator[Any]] = setup.train.epoch

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

    return Watched


def options(sync: str) -> dict[str, Any]:
    return {
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


def recorded(sync: str, folder: Path, blocks: int, draw: random.Random, beside: Bare | None) -> Timed:
    """The same steps through `Tolaria.train`."""
    timed = Timed()
    attached.Trainer = watched(timed, draw, beside)  # type: ignore[misc]
    settings = config.load({"tolaria": options(sync)})
    task = PriceTask()
    train = Tolaria(settings, run_dir=folder).train
    train(task.model(settings), task.train_data(settings), None, blocks, task=task)
    return timed


def of_daemon(sync: str, folder: Path, blocks: int, seed: str) -> Steps:
    """The same steps in the trainer of a daemon."""
    folder.mkdir()
    asked = folder.with_suffix(".yaml")
    run = {**options(sync), "task": "tests.bench.price_task:PriceTask", "epochs": blocks}
    asked.write_text(json.dumps({"tolaria": run}))
    trainer = [sys.executable, "-m", "tests.bench.price_apart", "--run", str(folder)]
    daemon = DaemonProcess(
        folder,
        config=str(asked),
        sets=[],
        trainer_command=[*trainer, "--config-json", str(folder / "config.resolved.json")],
        environ={DRAWN: seed},
    )
    daemon.process.communicate()
    return json.loads((folder / FOUND).read_text())


def train_for_daemon() -> int:
    """As `python -m tolariad.trainer`, and leave the times in the run's folder."""
    timed = Timed()
    loop.Trainer = watched(timed, random.Random(int(os.environ[DRAWN])))  # type: ignore[misc]
    ended = main()
    (Path(sys.argv[2]) / FOUND).write_text(json.dumps(timed.steps_us()))
    return ended


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        lifelines.leave(train_for_daemon())
    loops, sync_, folder_, steps, seed_ = sys.argv[1:]
    count, drawn, found = int(steps) // BLOCK + SETTLED, random.Random(int(seed_)), dict[str, Steps]()
    plain = Bare(drawn) if loops in ("bare", "both") else None
    if loops == "daemon":
        found["recorded"] = of_daemon(sync_, Path(folder_), count, seed_)
    elif loops != "bare":
        found["recorded"] = recorded(sync_, Path(folder_), count, drawn, plain).steps_us()
    elif plain is not None:
        for _ in range(count):
            plain.block()
    if plain is not None:
        found["bare"] = plain.timed.steps_us()
    json.dump(found, sys.stdout)
