"""A real trainer under a real daemon that runs other loops between its epochs, in the same process, in random turn.

Every epoch of the run is one block of tolariad's own loop; beside each, one block of every other loop. The figures are
written to `price.json` in the run's folder when the daemon ends the trainer. PRICE_LOOPS names the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from tests.bench import price_loops
from tests.bench.price_task import MODELS, layers
from tolariad import lifelines
from tolariad.trainer import loop
from tolariad.trainer.__main__ import main


class Block:
    """One block of one loop: wall and processor time a step, from the first batch asked for to the last step's end."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.steps = 0
        self.wall_ns = self.cpu_ns = self.preempted = 0
        self._began = (0, 0, 0)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        preempted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        self._began = wall_ns, cpu_ns, preempted
        for batch in self._batches:
            self.steps += 1
            yield batch
        self.end()

    def end(self) -> None:
        """The last step is done; a loop that knows how many there are need not ask for one more to say so."""
        wall_ns, cpu_ns, preempted = self._began
        self.wall_ns = time.perf_counter_ns() - wall_ns
        self.cpu_ns = time.thread_time_ns() - cpu_ns
        self.preempted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - preempted

    def found(self) -> dict[str, float]:
        return {
            "wall_us": self.wall_ns / self.steps / 1e3,
            "cpu_us": self.cpu_ns / self.steps / 1e3,
            "preempted": self.preempted / self.steps,
        }


class Priced(loop.Trainer):
    """The trainer as it is; only its feed is wrapped, and its page tells of waits at the gate."""

    def __init__(self, setup: Any, end: Any, run_dir: Path, run_id: str = "", **more: Any) -> None:
        super().__init__(setup, end, run_dir, run_id, **more)
        self._run_dir = run_dir
        self._random = random.Random(int(os.environ.get("PRICE_SEED", "1")))
        self._rounds: list[dict[str, Any]] = []
        self._feed_epoch = setup.train.epoch
        self._block: Block | None = None
        setup.train.epoch = self._wrapped
        self._waits_ns: list[int] = []
        self._watch_gate(end.page)
        self._data = setup.train._tensors
        self._loops = self._others(setup)

    def _watch_gate(self, page: Any) -> None:
        """Only a gate that was found closed marks the page, so an open one costs nothing more than it does."""
        mark, began = page.set_waiting, 0

        def set_waiting(number: int) -> None:
            nonlocal began
            mark(number)
            if number:
                began = time.perf_counter_ns()
            else:
                self._waits_ns.append(time.perf_counter_ns() - began)

        page.set_waiting = set_waiting

    def _others(self, setup: Any) -> dict[str, Any]:
        size = setup.settings.batch_size
        decay = {"weight_decay": setup.optimizer.defaults["weight_decay"]}

        def make() -> tuple[Any, Any]:
            model = layers(*MODELS[setup.settings.task_options["model"]])
            return model, torch.optim.AdamW(model.parameters(), setup.settings.learning_rate.base_lr, **decay)

        made: dict[str, Any] = {}
        for name in os.environ.get("PRICE_LOOPS", "bare").split(","):
            if name == "fabric":
                run = price_loops.OverFabric(make)
            elif name == "writes":
                run = price_loops.BesideWrites(make, self._run_dir)
            elif name == "lightning":
                run = price_loops.OverLightning(make, self._run_dir / "lightning")
            else:
                run = price_loops.Bare(make)
            over_loader = name == "loader"
            made[name] = (run, lambda over=over_loader: self._batches(size, over))
        return made

    def _batches(self, size: int, over_loader: bool) -> Any:
        if over_loader:
            return price_loops.over_loader(self._data, size)
        return Sized(len(self._data[0]) // size, lambda: price_loops.index_batches(self._data, size))

    def _wrapped(self, epoch: int, start: int) -> Iterator[Any]:
        self._block = Block(self._feed_epoch(epoch, start))
        return iter(self._block)

    def _epoch(self) -> loop.Flow:
        names = ["tolariad", *self._loops]
        self._random.shuffle(names)
        found: dict[str, Any] = {}
        for name in names:
            if name == "tolariad":
                found[name] = yield from self._own_epoch()
                continue
            run, batches = self._loops[name]
            if isinstance(run, price_loops.Bare):
                price_loops.moved(run.model, run.optimizer, self._random)
            block = Block(batches())
            with nobody_looks():
                run(block)
            found[name] = block.found()
        self._rounds.append(found)

    def _own_epoch(self) -> Generator[Any, None, dict[str, Any]]:
        self._waits_ns.clear()
        price_loops.moved(self.setup.model, self.setup.optimizer, self._random)
        before = daemon_cpu_ns()
        yield from super()._epoch()
        assert self._block is not None
        after = daemon_cpu_ns()
        threads = sorted(((after[one] - before.get(one, 0)) / self._block.steps / 1e3 for one in after), reverse=True)
        return {
            **self._block.found(),
            "waits_us": [wait / 1e3 for wait in self._waits_ns],
            "steps": self._block.steps,
            "daemon_us": sum(threads),
            "daemon_threads_us": threads[:4],
        }

    def run(self) -> None:
        try:
            super().run()
        finally:
            (self._run_dir / "price.json").write_text(json.dumps(self._rounds))


@contextlib.contextmanager
def nobody_looks() -> Iterator[None]:
    """Keep the guard of rates away: it checks every optimizer of the process before each step, and a bare loop has no
    guard.
    """
    hooks = dict(_global_optimizer_pre_hooks)
    _global_optimizer_pre_hooks.clear()
    try:
        yield
    finally:
        _global_optimizer_pre_hooks.update(hooks)


class Sized:
    """Batches whose number is known, anew for each loop over them."""

    def __init__(self, count: int, make: Any) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def daemon_cpu_ns() -> dict[str, int]:
    """Processor time of every thread of the daemon so far, or of this process without this thread."""
    recorder = os.getpid() if "PRICE_WITHIN" in os.environ else os.getppid()
    found = {}
    for task in Path(f"/proc/{recorder}/task").iterdir():
        if task.name == str(threading.get_native_id()):
            continue
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue
    return found


if __name__ == "__main__":
    loop.Trainer = Priced  # type: ignore[misc]
    lifelines.leave(main())
