"""A GPT-2-like model in bf16: its throughput in a plain loop and recorded, and how often the host waits in a step.

The plain loop reads nothing from the device. Both run in this process, one after the other, on the same rows.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.gpu.gpt import Gpt, Size, loss_of, rows
from tolariad import Tolaria


class Plan(NamedTuple):
    """How many rows are in a batch, and how many steps come first, are timed, and are watched."""

    batch: int
    first: int
    timed: int
    watched: int

    @property
    def steps(self) -> int:
        return self.first + self.timed + self.watched


class Found(NamedTuple):
    """Tokens a second; the waits of the watched steps, by what was called."""

    tokens_s: float
    waits: Counter[str]


class Watch:
    """Called after each step. It times some steps, and counts the waits in others."""

    def __init__(self, device: torch.device, plan: Plan, tokens: int) -> None:
        self._device, self._plan, self._tokens = device, plan, tokens
        self._begun = self._seconds = 0.0
        self._watching: Any = None
        self.waits: Counter[str] = Counter()

    def __call__(self, step: int) -> None:
        plan = self._plan
        if step in (plan.first, plan.first + plan.timed):
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self._begun, self._seconds = time.perf_counter(), time.perf_counter() - self._begun
        if step == plan.first + plan.timed:
            self._watching = counted(self.waits, self._device)
            self._watching.__enter__()
        elif step == plan.steps:
            self._watching.__exit__(None, None, None)

    @property
    def found(self) -> Found:
        return Found(self._plan.timed * self._tokens / self._seconds, self.waits)


@contextmanager
def counted(waits: Counter[str], device: torch.device) -> Iterator[None]:
    """In the block, count every wait of the host for the device. Those for events are counted apart."""
    if device.type != "cuda":
        yield
        return
    names = ("synchronize", "Event.synchronize", "Stream.synchronize")
    owners: tuple[Any, ...] = (torch.cuda, torch.cuda.Event, torch.cuda.Stream)
    real = [owner.synchronize for owner in owners]

    def counting(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            waits[name] += 1
            return function(*arguments, **named)

        return call

    for owner, name, function in zip(owners, names, real, strict=True):
        owner.synchronize = counting(name, function)
    before = warnings.showwarning
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")

            def show(message: Any, *rest: Any, **more: Any) -> None:
                if "synchronizing CUDA operation" in str(message):
                    waits["other operations"] += 1
                else:
                    before(message, *rest, **more)

            torch.cuda.set_sync_debug_mode("warn")
            warnings.showwarning = show
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
        warnings.showwarning = before
        for owner, function in zip(owners, real, strict=True):
            owner.synchronize = function


def plain(size: Size, plan: Plan, device: torch.device, *, compiled: bool) -> Found:
    """Train in a loop of torch's alone."""
    model, optimizer = _model(size, device)
    if compiled:
        model.forward = torch.compile(model.forward, dynamic=False)
    watch = Watch(device, plan, plan.batch * size.context)
    loader = DataLoader(TensorDataset(rows(size, plan.batch * plan.steps)), plan.batch, shuffle=True)
    for step, (tokens,) in enumerate(loader, 1):
        moved = tokens.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(model, moved)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch(step)
    return watch.found


def recorded(size: Size, plan: Plan, device: torch.device, folder: Path, *, compiled: bool) -> Found:
    """Train the same as a run of the library."""
    model, optimizer = _model(size, device)
    watch = Watch(device, plan, plan.batch * size.context)

    class Task:
        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            return loss_of(model, batch[0])

        def evaluate(self, model: Any, batch: Any) -> dict[str, float]:
            return {}

        def on_step_end(self, model: Any, step: int) -> None:
            watch(step)

    settings = {
        "device": str(device),
        "precision": "bf16",
        "compile": compiled,
        "rng_seed": 7,
        "checkpoint": {"interval_s": 1_000_000, "throttle_mb_s": None},
        "rollback": {"fast_path_enabled": False},
        "learning_rate": {"base_lr": 3e-4},
        "control": {"socket": False},
    }
    loader = DataLoader(TensorDataset(rows(size, plan.batch * plan.steps)), plan.batch, shuffle=True)
    tolaria = Tolaria({"tolaria": settings}, run_dir=folder)
    tolaria.train(model, loader, None, epochs=1, optimizer=optimizer, task=Task())
    return watch.found


def _model(size: Size, device: torch.device) -> tuple[Gpt, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = Gpt(size).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4)
