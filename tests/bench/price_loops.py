"""The loops tolariad is priced against, each over the same data, model and optimizer, each with host loss and norm.

A loop takes an iterable of batches. The iterable reads the clock when the first batch is asked for, and when there are
no more or its `end` is called.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import mmap
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer]]


def norm_of(model: nn.Module) -> float:
    """The gradient's 2-norm as a user would take it on the CPU."""
    total = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            one = torch.linalg.vector_norm(parameter.grad).item()
            total += one * one
    return math.sqrt(total)


def moved(model: nn.Module, optimizer: torch.optim.Optimizer, draw: random.Random) -> None:
    """Put parameters and moments elsewhere in memory, values and objects as they were.

    Their place makes a step of this size 5 % slower or faster, as long as the process lives. So two equal loops differ
    by more than the measured price. For that reason every block of every loop lies elsewhere.
    """
    aside = [torch.empty(draw.randrange(1, 1 << 16)) for _ in range(draw.randrange(8))]
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
        aside.append(torch.empty(draw.randrange(1, 1 << 14)))
        state = optimizer.state.get(parameter, {})
        state.update({name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)})


def index_batches(data: tuple[torch.Tensor, torch.Tensor], size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Shuffled batches straight out of the tensors."""
    images, labels = data
    order = torch.randperm(len(images))
    for first in range(0, len(images), size):
        rows = order[first : first + size]
        yield images[rows], labels[rows]


class Bare:
    """The loop everybody writes first."""

    def __init__(self, make: Make) -> None:
        self.model, self.optimizer = make()

    def __call__(self, batches: Batches) -> None:
        model, optimizer = self.model, self.optimizer
        for images, labels in batches:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            loss.item()
            norm_of(model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


class BesideWrites(Bare):
    """The bare loop while another process makes bare durable writes about as often: the disk's part of the price."""

    def __init__(self, make: Make, folder: Path) -> None:
        super().__init__(make)
        self._folder = folder
        self._asked: mmap.mmap | None = None

    def _started(self) -> mmap.mmap:
        flag = self._folder / "writes.flag"
        flag.write_bytes(b"\0")
        # By now the recorder, whose child this process is, has been given its cores.
        cores = [str(core) for core in sorted(os.sched_getaffinity(os.getppid()))]
        command = [sys.executable, "-m", "tests.bench.price_writes", str(flag), str(self._folder / "writes.bin")]
        subprocess.Popen([*command, str(os.getpid()), *cores])
        with flag.open("r+b") as shared:
            return mmap.mmap(shared.fileno(), 1)

    def __call__(self, batches: Batches) -> None:
        self._asked = self._asked or self._started()
        self._asked[0] = 1
        super().__call__(batches)
        self._asked[0] = 0


class OverFabric:
    """The same, wrapped by Lightning Fabric."""

    def __init__(self, make: Make) -> None:
        from lightning.fabric import Fabric

        self.fabric = Fabric(accelerator="cpu", devices=1)
        self.model, self.optimizer = self.fabric.setup(*make())

    def __call__(self, batches: Batches) -> None:
        model, optimizer = self.model, self.optimizer
        for images, labels in batches:
            loss = functional.cross_entropy(model(images), labels)
            self.fabric.backward(loss)
            loss.item()
            norm_of(model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


class OverLightning:
    """The same as a LightningModule whose loss and norm a CSV logger writes every step."""

    def __init__(self, make: Make, folder: Path) -> None:
        self.module = _module(make)
        self.folder = folder

    def __call__(self, batches: Any) -> None:
        import lightning
        from lightning.pytorch.loggers import CSVLogger

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=1,
                logger=CSVLogger(self.folder),
                log_every_n_steps=1,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            self.module.ended = batches.end
            trainer.fit(self.module, batches)


def _module(make: Make) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.own_optimizer = make()
            self.ended: Callable[[], None] = lambda: None

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            images, labels = batch
            loss = functional.cross_entropy(self.net(images), labels)
            self.log("loss", loss)
            return loss

        def on_before_optimizer_step(self, _optimizer: Any) -> None:
            self.log("grad_norm", norm_of(self.net))

        def on_train_epoch_end(self) -> None:
            self.ended()

        def configure_optimizers(self) -> Any:
            return self.own_optimizer

    return Module()


def over_loader(data: tuple[torch.Tensor, torch.Tensor], size: int) -> DataLoader[Any]:
    """The data that a bare loop usually reads."""
    return DataLoader(TensorDataset(*data), batch_size=size, shuffle=True)


def missing(name: str) -> str | None:
    """Return why a loop cannot run here; None if it can."""
    if name in ("fabric", "lightning") and importlib.util.find_spec("lightning") is None:
        return "lightning is not installed (extra `bench`)"
    return None
