"""The price of the trainer's side of recording in a step, also on a busy machine: no daemon, one step against one step.

The loop of `tolariad.trainer` and the bare loop take turns, step by step in random order, in one thread. The figure is
that thread's processor time. The page says that everything is durable, so the gate is open. PRICE_TURNS (4000) is the
number of steps of each. Nothing is judged here; `test_step_price.py` prints wall time under a real daemon.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from tests.bench import price_loops
from tests.bench.price_task import MODELS, layers
from tests.trainer.conftest import config
from tolariad.channel import TrainerEnd, channel_pair
from tolariad.core import messages as m
from tolariad.trainer.build import build
from tolariad.trainer.loop import Trainer

TURNS = int(os.environ.get("PRICE_TURNS", "4000"))
BATCH_SIZE, RATE = 64, 1e-5
# Tensors are laid elsewhere after so many turns: where they lie makes a step faster or slower.
MOVED_EVERY = 40


def recorded(
    folder: Path, task_name: str = "tests.bench.price_task:PriceTask"
) -> tuple[Any, Callable[[], None], Callable[[], None]]:
    """The setup of a run, its step without a daemon, and what lets it go."""
    options = {"batch_size": BATCH_SIZE, "learning_rate": {"base_lr": RATE, "warmup_epochs": 0}}
    task = {"model": "mlp", "steps": 280}
    setup = build(config(task_name, **options, task_options=task))
    ours, theirs = channel_pair(1)
    end = TrainerEnd(theirs, ours.page)
    trainer = Trainer(setup, end, folder, "alone")
    ours.page.thaw()
    ours.page.set_durable(1 << 60)
    trainer._order = m.TrainFrom(checkpoint=None, epochs=1 << 40, durable_step=0)
    batches = endless(lambda: setup.train.epoch(1, 0))

    def step() -> None:
        trainer.stepper.make((next(batches),))
        trainer._stop()

    def close() -> None:
        trainer._saver.close()
        trainer._snapshots.close()
        end.close()
        ours.close()

    return setup, step, close


def bare(setup: Any) -> tuple[Any, Any, Callable[[], None]]:
    """A model, an optimizer and one step of the bare loop over them."""
    model = layers(*MODELS["mlp"])
    decay = setup.optimizer.defaults["weight_decay"]
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=decay)
    loop = price_loops.Bare(lambda: (model, optimizer))
    batches = endless(lambda: price_loops.index_batches(setup.train._tensors, BATCH_SIZE))
    return model, optimizer, lambda: loop([next(batches)])


def endless(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    while True:
        yield from make()


def timed(step: Callable[[], None]) -> float:
    """Microseconds of this thread's processor time."""
    begun = time.thread_time_ns()
    step()
    return (time.thread_time_ns() - begun) / 1e3


@pytest.mark.bench
def test_the_price_of_the_trainers_side_is_printed(tmp_path, seed):
    """Paired differences, and both loops at the same percentiles: the low ones are those that others disturb least."""
    draw = random.Random(seed)
    torch.set_num_threads(1)
    setup, step, close = recorded(tmp_path)
    model, optimizer, bare_step = bare(setup)
    hooks = dict(_global_optimizer_pre_hooks)

    def alone() -> float:
        # A loop by itself has no guard that looks at every optimizer of the process.
        _global_optimizer_pre_hooks.clear()
        took = timed(bare_step)
        _global_optimizer_pre_hooks.update(hooks)
        return took

    pairs = []
    for turn in range(-200, TURNS):
        if turn % MOVED_EVERY == 0:
            price_loops.moved(model, optimizer, draw)
            price_loops.moved(setup.model, setup.optimizer, draw)
            alone()
            step()
        first = draw.random() < 0.5
        before = timed(step) if first else 0.0
        by_itself = alone()
        pairs.append((before if first else timed(step), by_itself))
    close()

    pairs = pairs[200:]
    print(
        f"\n{platform.machine()}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}: {TURNS} steps of each loop"
    )
    print(f"{'CPU us a step':16s}{'bare':>10s}{'tolariad':>10s}{'over bare':>11s}")
    ours, theirs = (sorted(column) for column in zip(*pairs, strict=True))
    for percent in (5, 10, 25, 50):
        at = TURNS * percent // 100
        print(f"{f'{percent} % are below':16s}{theirs[at]:10.1f}{ours[at]:10.1f}{ours[at] - theirs[at]:+11.1f}")
    differences = sorted(one - other for one, other in pairs)
    middle = differences[TURNS // 4 : -(TURNS // 4)]
    print(
        f"paired: median {statistics.median(differences):+.1f}, mean of the middle half {statistics.fmean(middle):+.1f}"
    )
    assert len(pairs) == TURNS
