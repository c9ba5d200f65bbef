"""Images augmented one by one in DataLoader workers, with any random generator, and still resumable bit for bit.

Each item is loaded under a seed made from (rng_seed, epoch, index). So neither the number of workers nor the point of
an interruption changes the data.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset[tuple[Tensor, int]]):
    """Crosses, squares and discs of 16 by 16 pixels. `augment` flips them, shifts them and adds noise."""

    def __init__(self, count: int, *, seed: int, augment: bool) -> None:
        self._seed = seed
        self._count = count
        self._augment = augment

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image (1, 16, 16) float32 and its label."""
        label = index % 3
        image = draw(label, np.random.default_rng((self._seed, index)))
        if self._augment:
            if random.random() < 0.5:
                image = image[:, ::-1]
            image = np.roll(image, np.random.randint(-2, 3), axis=0) + 0.2 * np.random.randn(16, 16)
        tensor = torch.from_numpy(np.ascontiguousarray(image, dtype=np.float32))[None]
        return tensor + 0.01 * torch.randn(tensor.shape), label


def draw(label: int, generator: np.random.Generator) -> np.ndarray:
    """Draw a cross, a square or a disc near the middle."""
    y, x = np.mgrid[0:16, 0:16] - 7.5 + generator.uniform(-2, 2, (2, 1, 1))
    size = generator.uniform(3, 6)
    if label == 0:
        return ((np.abs(x) < 1.5) | (np.abs(y) < 1.5)) * 1.0
    if label == 1:
        return (np.maximum(np.abs(x), np.abs(y)) < size) * 1.0
    return (x * x + y * y < size * size) * 1.0


class Vision:
    """A small convolutional network with BatchNorm and dropout."""

    def model(self, cfg: Any) -> nn.Module:
        """Return a network of two convolutions and a linear layer."""
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(256, 3),
        )

    def train_data(self, cfg: Any) -> Any:
        """Return a DataLoader. A Dataset is enough too: the loader is then made from batch_size and workers."""
        data = Shapes(cfg.task_options.get("images", 960), seed=1, augment=True)
        persistent = cfg.workers > 0
        return DataLoader(
            data, cfg.batch_size, shuffle=True, num_workers=cfg.workers, persistent_workers=persistent, drop_last=True
        )

    def val_data(self, cfg: Any) -> Any:
        """Return images without augmentation."""
        return Shapes(240, seed=2, augment=False)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy."""
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return the sums of the loss and of correct predictions."""
        images, labels = batch
        logits = model(images)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}
