"""A large checkpoint beside training: how long it takes, and what steps and the journal pay, by kind of pace.

One run, whose checkpoints take turns: throttled to 100 MB/s, adapted (the default), without a limit. So whatever else
the machine does falls on all of them. The state is mostly frozen parameters, so that a step is short and a checkpoint
is not. Steps either compute or wait, as beside a GPU. Nothing is judged here: the table is for whoever reads it.

    python -m tests.bench.test_pace_beside [--folder DIR] [--megabytes 1200] [--rounds 3] [--kinds compute wait]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.bench.machine import as_a_trainer, become_a_trainer, machine
from tests.library.inside import ordered, state_of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.trainer.checkpoints.paces import Paces

MODULE = "tests.bench.test_pace_beside"
THROTTLES: dict[str, float | str | None] = {"100 MB/s": 100.0, "auto": "auto", "no limit": None}
# Steps between two checkpoints, once the last one is committed and the file system has let go of the one before it:
# for about half a second after a gigabyte is deleted, each durable write takes 60 ms.
CALM_STEPS = 100
LET_GO_S = 2.0
_WAIT_S = 0.01


class Watched(Paces):
    """The paces of the run, whose throttle the task sets. `shared`: of the last trainer."""

    shared: Watched

    def __init__(self, throttle: Any, page: Any, steps: Any) -> None:
        super().__init__(throttle, page, steps)
        self.page = page
        Watched.shared = self

    def use(self, throttle: float | str | None) -> None:
        self._throttle = throttle

    @property
    def reached(self) -> float:
        """The last adapted limit."""
        return self._pacing.bytes_s


class Alternating:
    """Orders a checkpoint of the next kind when the last one is there, and notes each step and write beside it."""

    def __init__(self, rounds: int, *, waits: bool) -> None:
        self.run: Tolaria | None = None
        self.waits = waits
        self.todo = [name for _ in range(rounds) for name in THROTTLES]
        self.going, self.before = "", 0
        self.calm = 0
        self.last, self.durable, self.done = 0.0, 0, 0.0
        self.steps: dict[str, list[float]] = {name: [] for name in ("none", *THROTTLES)}
        self.appends: dict[str, list[float]] = {name: [] for name in ("none", *THROTTLES)}
        self.seconds: dict[str, list[float]] = {name: [] for name in THROTTLES}
        self.held: dict[str, list[float]] = {name: [] for name in THROTTLES}
        self.limits: list[float] = []

    def stepped(self, step: int) -> None:
        if self.waits:
            time.sleep(_WAIT_S)
        now, page = time.perf_counter(), Watched.shared.page
        kind = self.going or "none"
        # The first step after an order contains the copy.
        follows = self.going or now > self.done + LET_GO_S
        if self.last and follows and step > self.before + 1 and step > 2 * CALM_STEPS:
            self.steps[kind].append(now - self.last)
            if page.durable != self.durable:
                self.appends[kind].append(page.write_ns / 1e9)
        self.last, self.durable = now, page.durable
        if self.going:
            self._look()
        elif follows:
            self.calm += 1
            if self.calm > CALM_STEPS and step > 3 * CALM_STEPS and self.todo:
                self._order(step)

    def _order(self, step: int) -> None:
        self.going, self.before = self.todo.pop(0), step
        self.former = self._newest
        Watched.shared.use(THROTTLES[self.going])
        self.since = time.perf_counter()
        assert ordered(self.run, m.Checkpoint())

    def _look(self) -> None:
        # Not by their number: the run keeps one only.
        if state_of(self.run).checkpoints.open or self._newest == self.former:
            return
        self.seconds[self.going].append(time.perf_counter() - self.since)
        if self.going == "auto":
            self.limits.append(Watched.shared.reached)
        self.going, self.calm, self.done = "", 0, time.perf_counter()

    @property
    def _newest(self) -> str:
        """The id of the newest checkpoint."""
        newest = state_of(self.run).checkpoints.newest
        return newest.id if newest is not None else ""

    @property
    def is_done(self) -> bool:
        return not self.todo and not self.going


class Ballasted(nn.Sequential):
    """A small network that learns, beside parameters of so many MB that do not."""

    def __init__(self, megabytes: float) -> None:
        torch.manual_seed(3)
        super().__init__(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        rows = max(1, round(megabytes * 1e6 / 4 / 1024 / 8))
        self.ballast = nn.ParameterList(nn.Parameter(torch.ones(rows, 1024), requires_grad=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in list(self)[:5]:
            x = layer(x)
        return x


class Batches(Dataset):
    """Whole batches, so that no step pays for collecting one; an epoch is longer than the run."""

    def __init__(self, samples: int) -> None:
        self.inputs = torch.randn(64, samples, 256)
        self.targets = self.inputs[:, :, :10].argmax(2)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index % 64], self.targets[index % 64]


def measured(folder: Path, megabytes: float, rounds: int, *, waits: bool) -> Alternating:
    """Train until each kind had its rounds."""
    import tolariad.trainer.loop as loop

    loop.Paces = Watched
    task = Alternating(rounds, waits=waits)
    data = Batches(32 if waits else 256)
    config = {
        "rng_seed": 5,
        "learning_rate": {"base_lr": 0.001, "warmup_epochs": 0, "policy": "constant"},
        "checkpoint_interval_epochs": 1_000_000,
        "checkpoint": {"min_gap_s": 0, "interval_s": 1e6, "keep_last": 1},
        "checkpoint_storage_quota_gb": 4 * megabytes / 1000,
        "rollback": {"fast_path_enabled": False},
        "journal": {"sync": "step"},
        "budgets": {"act": False},
        "detect": {"act": False},
    }
    task.run = Tolaria({"tolaria": config}, run_dir=folder / "run")
    model, step = Ballasted(megabytes), 0
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    own = task.run.run(model, optimizer, DataLoader(data, batch_size=None))
    for _ in own.epochs(1_000_000):
        for x, y in own.batches():
            own.step(nn.functional.cross_entropy(model(x), y))
            step += 1
            task.stepped(step)
            if task.is_done and task.calm > CALM_STEPS:
                return task
    raise AssertionError("the run ended before its checkpoints")


def percentile(values: list[float], share: float) -> float:
    ordered_values = sorted(values)
    return ordered_values[min(len(values) - 1, int(share * len(values)))] * 1e3


def lines(task: Alternating, megabytes: float) -> list[str]:
    """The table of one kind of step."""
    usual = percentile(task.steps["none"], 0.5)
    head = f"  {'beside':10}{'seconds':>9}{'MB/s':>7}   {'step p50':>9}{'p99':>8}{'of usual':>10}"
    shown = [f"{head}   {'append p50':>11}{'p99':>8}   lost in all"]
    for name in ("none", *THROTTLES):
        steps, appends = task.steps[name], task.appends[name]
        took = statistics.median(task.seconds[name]) if name in THROTTLES else 0.0
        p50, mean = percentile(steps, 0.5), 1e3 * statistics.fmean(steps)
        calm = 1e3 * statistics.fmean(task.steps["none"])
        lost = (mean - calm) / mean * took if took else 0.0
        speed = megabytes / took if took else 0.0
        shown.append(
            f"  {name:10}{took:9.1f}{speed:7.0f}   {p50:6.2f} ms{percentile(steps, 0.99):5.1f} ms{p50 / usual:10.2f}"
            f"   {percentile(appends, 0.5):8.2f} ms{percentile(appends, 0.99):5.1f} ms   {lost:6.2f} s"
        )
    shown.append(f"  adapted limits, MB/s: {', '.join(f'{one / 1e6:.0f}' for one in task.limits)}")
    return shown


def show(folder: Path, megabytes: float, rounds: int, kinds: list[str]) -> None:
    """Print the tables."""
    print(f"\n{machine()}, torch {torch.__version__}, {torch.get_num_threads()} torch threads")
    for kind in kinds:
        with tempfile.TemporaryDirectory(dir=folder) as made:
            task = measured(Path(made), megabytes, rounds, waits=kind == "wait")
        print(f"{megabytes:g} MB, {rounds} checkpoints of each kind, steps that {kind}")
        print("\n".join(lines(task, megabytes)), flush=True)


@pytest.mark.bench
def test_what_a_large_checkpoint_costs_beside_training(tmp_path: Path) -> None:
    """The whole size; it takes two minutes and 4 GB of disk."""
    text = as_a_trainer(MODULE, "--folder", str(tmp_path))
    print(text)
    assert text.count("auto") >= 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--megabytes", type=float, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["compute", "wait"])
    given = parser.parse_args()
    become_a_trainer(MODULE)
    show(given.folder, given.megabytes, given.rounds, given.kinds)
