"""The campaign's task: small, with everything that makes exact resume hard.

Dropout, BatchNorm, whole-batch augmentation from the global generator, per-sample augmentation (Python, NumPy and torch
generators) in a DataLoader worker, state of the task's own. At the end of an epoch it waits until the file `brake` in
the working folder names that epoch or a later one. Without the file it does not wait.
"""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tolariad.trainer import build
from tolariad.trainer.architecture import Change
from tolariad.trainer.lr import controller_of
from tolariad.trainer.step.compiled import compile_forward

SAMPLES = 96
CLASSES = 4


class Patches(Dataset):
    """Noisy patches of four classes; each item is drawn again, from all three generators."""

    def __init__(self, samples: int, seed: int, *, augment: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (samples,), generator=generator)
        means = torch.eye(CLASSES).repeat_interleave(16, 1)
        noise = torch.randn(samples, 64, generator=generator)
        self.images = (means[self.labels] + 0.4 * noise).reshape(samples, 1, 8, 8)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            image = image.roll(random.randrange(3), -1)
            image = image * float(np.random.uniform(0.8, 1.2))
            image = image + 0.1 * torch.randn_like(image)
        return image, self.labels[index]


def _released() -> float:
    try:
        return float(Path("brake").read_text())
    except FileNotFoundError:
        return float("inf")


class Small(nn.Module):
    """Convolution, BatchNorm, Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8 * 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(self.drop(hidden.flatten(1)))


class Disturbed:
    """The task. It also counts steps and batches, as its own state that must be restored.

    With the option `overflow: N`, the loss of every N-th batch has gradients beyond the range of fp16. With `backend:
    NAME` that backend compiles the model.
    """

    def __init__(self) -> None:
        self.steps = self.batches = self.overflow = 0

    def model(self, cfg: Any) -> nn.Module:
        self.overflow = cfg.task_options.get("overflow", 0)
        if backend := cfg.task_options.get("backend"):
            build.compile_forward = functools.partial(compile_forward, backend=backend)
        return Small()

    def train_data(self, cfg: Any) -> Any:
        data = Patches(SAMPLES, 1, augment=True)
        return DataLoader(data, batch_size=12, shuffle=True, num_workers=cfg.task_options.get("workers", 1))

    def val_data(self, cfg: Any) -> Any:
        return DataLoader(Patches(48, 2, augment=False), batch_size=24)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, labels = batch
        shifted = images.roll(int(torch.randint(0, 3, ())), -2) + 0.05 * torch.randn_like(images)
        self.batches += 1
        beyond = self.overflow and self.batches % self.overflow == 0
        return functional.cross_entropy(model(shifted), labels) * (1e30 if beyond else 1.0)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        images, labels = batch
        logits = model(images)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}

    def on_step_end(self, model: nn.Module, step: int) -> None:
        self.steps += 1

    def on_epoch_end(self, model: nn.Module, epoch: int, metrics: Any) -> None:
        while epoch > _released():
            time.sleep(0.005)

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps, "batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps, self.batches = state["steps"], state["batches"]


class Parts(Disturbed):
    """The same, with an optimizer for each part."""

    def optimizers(self, model: nn.Module) -> dict[str, torch.optim.Optimizer]:
        body = [*model.conv.parameters(), *model.norm.parameters()]
        return {
            "body": torch.optim.AdamW(body, lr=0.01),
            "head": torch.optim.SGD(model.head.parameters(), lr=0.01, momentum=0.9),
        }


class Several(Parts):
    """It updates the head first, then the rest, from the loss that the new head gives."""

    def training_step(self, model: nn.Module, batch: Any, run: Any) -> dict[str, Tensor]:
        run.update("head", self.loss(model, batch))
        loss = self.loss(model, batch)
        run.update("body", loss)
        return {"loss": loss}


class Growing(Parts):
    """A model that grows after a step and at an epoch's end."""

    def on_step_end(self, model: nn.Module, step: int) -> None:
        super().on_step_end(model, step)
        if step == 3:
            controller_of(model).grow("widen", by=4)

    def on_epoch_end(self, model: nn.Module, epoch: int, metrics: Any) -> None:
        if epoch == 2:
            controller_of(model).grow("deepen")
        super().on_epoch_end(model, epoch, metrics)

    def grow(self, model: nn.Module, change: Change) -> None:
        if change.name == "deepen":
            model.head = nn.Sequential(model.head, nn.Linear(CLASSES, CLASSES))
            return
        by, conv, head, norm = (
            change.arguments["by"],
            model.conv,
            model.head,
            nn.BatchNorm2d(8 + change.arguments["by"]),
        )
        with torch.no_grad():
            conv.weight = nn.Parameter(torch.cat([conv.weight, 0.1 * torch.randn(by, 1, 3, 3)]))
            conv.bias = nn.Parameter(torch.cat([conv.bias, torch.zeros(by)]))
            head.weight = nn.Parameter(torch.cat([head.weight, 0.1 * torch.randn(CLASSES, by * 16)], 1))
            for name, tensor in norm.state_dict().items():
                held = model.norm.state_dict()[name]
                tensor[tuple(slice(0, size) for size in held.shape)] = held
        conv.out_channels += by
        head.in_features += by * 16
        model.norm = norm
