"""Single steps of loops in one process: `LOOPS SYNC FOLDER STEPS SEED`.

LOOPS: bare, recorded (by `Tolaria.train`), or daemon (recorded by `tolariad run`). With "+" a bare step follows each
recorded one, in the same thread.

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


# In the environment of the daemon's trainer: its seed, and "+" or nothing.
DRAWN, BESIDE = "PRICE_APART_SEED", "PRICE_APART_BESIDE"
FOUND = "apart.json"
Steps = dict[str, list[float]]


class Timed:
    """Notes how long each step takes, from one batch asked for to the next."""

    def __init__(self) -> None:
        self.blocks: list[list[tuple[int, int]]] = []

    def __call__(self, batches: Iterator[Any], between: Callable[[], None] | None = None) -> Iterator[Any]:
        """Yield the batches. `between` is called after each step, whose time ends before."""
        took: list[tuple[int, int]] = []
        self.blocks.append(took)
        while True:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
            took.append((time.perf_counter_ns() - wall, time.thread_time_ns() - cpu))
            if between is not None:
                between()

    def steps_us(self) -> Steps:
        steps = [step for block in self.blocks[SETTLED:] for step in block[1:]]
        return {"wall": [wall / 1e3 for wall, _ in steps], "cpu": [cpu / 1e3 for _, cpu in steps]}


class Bare:
    """The loop that everybody writes first, block by block, or step by step."""

    def __init__(self, draw: random.Random) -> None:
        torch.set_num_threads(1)
        self.timed, self._draw, self._data = Timed(), draw, block_data(BATCH, BLOCK)
        model = layers(*MODELS["mlp"])
        self._loop = price_loops.Bare(lambda: (model, torch.optim.AdamW(model.parameters(), RATE)))
        self._batches: Iterator[Any] = iter(())

    def begin(self) -> None:
        price_loops.moved(self._loop.model, self._loop.optimizer, self._draw)
        self._batches = price_loops.index_batches(self._data, BATCH)
        self._steps: list[tuple[int, int]] = []
        self.timed.blocks.append(self._steps)

    def block(self) -> None:
        self.begin()
        self.timed.blocks.pop()
        self._loop(self.timed(self._batches))

    def step(self) -> None:
        """Make one step, fetching its batch included."""
        hooks = dict(_global_optimizer_pre_hooks)
        # A loop by itself has no guard that looks at every optimizer of the process.
        _global_optimizer_pre_hooks.clear()
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        self._loop([next(self._batches)])
        self._steps.append((time.perf_counter_ns() - wall, time.thread_time_ns() - cpu))
        _global_optimizer_pre_hooks.update(hooks)


def watched(timed: Timed, draw: random.Random, beside: Bare | None = None) -> type[loop.Trainer]:
    """The trainer as it is; only its feed is wrapped. After each step comes one of the loop `beside`."""

    class Watched(loop.Trainer):
        def __init__(self, setup: Any, *given: Any, **more: Any) -> None:
            super().__init__(setup, *given, **more)
            feed: Callable[..., Iterator[Any]] = setup.train.epoch

            def epoch(*at: Any) -> Iterator[Any]:
                price_loops.moved(setup.model, setup.optimizer, draw)
                if beside is None:
                    return timed(feed(*at))
                beside.begin()
                return timed(feed(*at), beside.step)

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


def of_daemon(sync: str, folder: Path, blocks: int, seed: str, beside: str) -> dict[str, Steps]:
    """The same steps in the trainer of a daemon, and those of a loop beside, if there is one."""
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
        environ={DRAWN: seed, BESIDE: beside},
    )
    daemon.process.communicate()
    return json.loads((folder / FOUND).read_text())


def train_for_daemon() -> int:
    """As `python -m tolariad.trainer`, and leave the times in the run's folder."""
    timed, draw = Timed(), random.Random(int(os.environ[DRAWN]))
    beside = Bare(draw) if os.environ[BESIDE] else None
    loop.Trainer = watched(timed, draw, beside)  # type: ignore[misc]
    ended = main()
    found = {"recorded": timed.steps_us()} | ({"bare": beside.timed.steps_us()} if beside else {})
    (Path(sys.argv[2]) / FOUND).write_text(json.dumps(found))
    return ended


def steps_of(loops: str, sync: str, folder: str, steps: str, seed: str) -> dict[str, Steps]:
    """Return the steps of each loop."""
    kind, beside, _ = loops.partition("+")
    blocks, draw = int(steps) // BLOCK + SETTLED, random.Random(int(seed))
    if kind == "daemon":
        return of_daemon(sync, Path(folder), blocks, seed, beside)
    plain = Bare(draw) if kind == "bare" or beside else None
    found: dict[str, Steps] = {}
    if kind == "recorded":
        found["recorded"] = recorded(sync, Path(folder), blocks, draw, plain).steps_us()
    elif plain is not None:
        for _ in range(blocks):
            plain.block()
    if plain is not None:
        found["bare"] = plain.timed.steps_us()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        lifelines.leave(train_for_daemon())
    json.dump(steps_of(*sys.argv[1:]), sys.stdout)
