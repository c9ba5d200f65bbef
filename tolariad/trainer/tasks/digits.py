"""Handwritten digits: 1 797 real images of 8 by 8 pixels, from the data inside scikit-learn's package.

`task_options: {model: mlp}` (default) or `{model: cnn}`, which adds BatchNorm and a whole-batch augmentation from the
process-wide generator. Promises: the split into training and validation never changes.
It must not know: scikit-learn's code, whose import would cost a second a start; only its data file is read.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.core.settings import Settings

_SIDE: Final = 8
_CLASSES: Final = 10
_VALIDATION: Final = 360
_SPLIT_SEED: Final = 1797


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (1797, 64) float32 from 0 to 1, and labels (1797,) int64. Raises SetupRefused where they are not installed."""
    spec = importlib.util.find_spec("sklearn")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise SetupRefused("the digits images lie inside scikit-learn; install it: pip install 'tolariad[examples]'")
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(rows[:, :-1].copy()) / 16.0
    return images, torch.from_numpy(rows[:, -1].astype(np.int64))


class Digits:
    """The task. Batches are (images (n, 64), labels (n,))."""

    def __init__(self) -> None:
        images, labels = read_digits()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        train, validation = order[:-_VALIDATION], order[-_VALIDATION:]
        self._train = (images[train], labels[train])
        self._validation = (images[validation], labels[validation])
        self._augment = False

    def model(self, cfg: Settings) -> nn.Module:
        """The network `task_options.model` names."""
        kind = cfg.task_options.get("model", "mlp")
        if kind not in {"mlp", "cnn"}:
            raise SetupRefused(f"task_options.model: {kind!r} is neither mlp nor cnn")
        self._augment = kind == "cnn"
        return _mlp() if kind == "mlp" else _cnn()

    def train_data(self, cfg: Settings) -> Any:  # noqa: ARG002 - the protocol's signature
        """1 437 samples."""
        return self._train

    def val_data(self, cfg: Settings) -> Any:  # noqa: ARG002
        """360 samples."""
        return self._validation

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Mean cross-entropy."""
        images, labels = batch
        if self._augment:
            images = augmented(images)
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Sums of the loss and of right answers."""
        images, labels = batch
        logits = model(images)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}


def augmented(images: torch.Tensor) -> torch.Tensor:
    """The batch shifted as a whole by up to a pixel each way, with noise; both drawn from the process-wide generator."""
    down, right = (int(n) for n in torch.randint(-1, 2, (2,)))
    square = images.view(-1, _SIDE, _SIDE)
    shifted = torch.roll(square, (down, right), (1, 2)).view(-1, _SIDE * _SIDE)
    return shifted + 0.05 * torch.randn_like(shifted)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(_SIDE * _SIDE, 256),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(256, _CLASSES),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, _SIDE, _SIDE)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, _CLASSES),
    )
