"""Runs that get into trouble, beside runs that do not: five-fold over all 1 797 digits, as often as asked.

A fault strikes once, in the middle of a run. Nobody helps: what is skipped, gone back from and passed over is the run's
own doing. Everything is drawn from the run's seed: the folds, the network, the order of its data.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.library.inside import ordered, state_of
from tests.recorded import events_of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.trainer.tasks.digits import read_digits

FOLDS = 5
BATCH = 64
# The fault's step, in the fifth epoch: after the first 64, before which the detector knows too little.
STRUCK_AT = 110
HOT = 1000.0
# Student's t for 95 % of both sides, by degrees of freedom.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}


class Sick(TensorDataset):
    """Digits; those that are fetched for `batches` batches from step STRUCK_AT on are `wrong`, once."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, batches: int, wrong: Callable) -> None:
        super().__init__(images, labels)
        per_epoch = -(-len(labels) // BATCH)
        whole, within = divmod(STRUCK_AT - 1, per_epoch)
        first = whole * len(labels) + within * BATCH
        self._struck = range(first, first + batches * BATCH)
        self._wrong = wrong
        self._fetched = 0

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        self._fetched += 1
        return self._wrong(image, label) if self._fetched - 1 in self._struck else (image, label)


def _not_a_number(image, label):
    return image * math.nan, label


def _poisoned(image, label):
    return image * 1000.0, (label + 1) % 10


@dataclass(frozen=True)
class Fault:
    """`batches` of the data are wrong, or a rate is ordered."""

    name: str
    batches: int = 0
    wrong: Callable = _poisoned
    rate: float | None = None


CLEAN = Fault("clean")
FAULTS = (
    Fault("NaN at a step", 1, _not_a_number),
    Fault("exploding loss", 3),
    Fault("poisoned batch", 1),
    Fault("rate of 1000 ordered", rate=HOT),
)


class Died(Exception):
    """A run was ended on purpose."""


@dataclass
class Trained:
    """The result of a run."""

    accuracy: float
    bits: dict[str, bytes]
    events: list[m.Event]


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, 10),
        )


def split(seed: int, fold: int) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and validation data; over the five folds every digit is validated once."""
    images, labels = read_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split(FOLDS)
    rest = torch.cat([part for number, part in enumerate(parts) if number != fold])
    return (images[rest], labels[rest]), (images[parts[fold]], labels[parts[fold]])


def train(
    run_dir: Path,
    seed: int,
    fold: int,
    fault: Fault = CLEAN,
    *,
    epochs: int,
    skip: Iterable[m.Batches] = (),
    die_behind: int | None = None,
    from_memory: bool = True,
) -> Trained:
    """One run; a second call with the same folder goes on. `skip` goes into quarantine after its first step.

    `from_memory`: it may go back to a snapshot, not only to a checkpoint. Raises Died once there is a checkpoint of
    step `die_behind`.
    """
    (images, labels), held_out = split(seed, fold)
    config = {
        "rng_seed": seed,
        "torch_threads": 1,
        "batch_size": BATCH,
        "learning_rate": {"base_lr": 3e-3, "warmup_epochs": 1, "max_order_factor": 0},
        "checkpoint_interval_epochs": 1,
        "checkpoint": {"min_gap_s": 0, "throttle_mb_s": None},
        "journal": {"sync": "batch"},
        "budgets": {"act": False},
        "detect": {"rollback": True},
        "rollback": {"fast_path_enabled": from_memory},
    }
    tolaria = Tolaria({"tolaria": config}, run_dir=run_dir)
    waiting = list(skip)

    class Hooks:
        struck = False

        def on_step_end(self, model, step):
            while waiting:
                assert ordered(tolaria, m.QuarantineAdd(batches=waiting.pop()))
            if fault.rate is not None and step == STRUCK_AT and not Hooks.struck:
                Hooks.struck = True
                group = state_of(tolaria).rates.groups[0].name
                assert ordered(tolaria, m.LrSet(group=group, value=fault.rate))
            if die_behind is not None and step > die_behind:
                time.sleep(0.02)  # a moment for the writer
                if any(one.step == die_behind for one in state_of(tolaria).checkpoints.catalogue):
                    raise Died

    data = Sick(images, labels, fault.batches, fault.wrong)
    model = network(seed)
    result = tolaria.train(
        model,
        DataLoader(data, batch_size=BATCH, shuffle=True),
        DataLoader(TensorDataset(*held_out), batch_size=360),
        epochs,
        task=Hooks(),
    )
    assert result.phase == "completed", result
    bits = {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}
    return Trained(result.metrics["accuracy"], bits, events_of(run_dir))


@dataclass(frozen=True)
class Interval:
    """Return a mean and its 95 % interval, in points."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def difference(found: list[float], clean: list[float]) -> Interval:
    """Of pairs with the same seed, in points of accuracy."""
    each = [100.0 * (one - other) for one, other in zip(found, clean, strict=True)]
    mean = statistics.fmean(each)
    if len(each) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = _T[len(each) - 1] * statistics.stdev(each) / math.sqrt(len(each))
    return Interval(mean, mean - half, mean + half)
