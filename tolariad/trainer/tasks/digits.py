"""Handwritten digits: 1 797 real images of 8 by 8 pixels, from the data file inside scikit-learn's package.

`task_options: {model: mlp}` is the default; `{model: cnn}` adds BatchNorm and an augmentation of the whole batch that
draws from the process-wide generator. Promise: the split into training and validation data never changes. Only the
data file is read, because importing scikit-learn would take a second at each start.
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

from tolariad.core.calc.settings.task_defaults import TASK_OPTIONS
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings

_SIDE: Final = 8
_CLASSES: Final = 10
_VALIDATION: Final = 360
_SPLIT_SEED: Final = 1797


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 64) float32 from 0 to 1 and labels (1797,) int64.

    Raises SetupRefused if scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise SetupRefused(
            "the images of `digits` are inside scikit-learn; install it: pip install 'tolariad[examples]'"
        )
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(rows[:, :-1].copy()) / 16.0
    return images, torch.from_numpy(rows[:, -1].astype(np.int64))


class Digits:
    """The task `digits`. A batch is (images (n, 64), labels (n,))."""

    def __init__(self) -> None:
        images, labels = read_digits()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        train, validation = order[:-_VALIDATION], order[-_VALIDATION:]
        self._train = (images[train], labels[train])
        self._validation = (images[validation], labels[validation])
        self._augment = False

    def model(self, cfg: Settings) -> nn.Module:
        """Return the network named by `task_options.model`."""
        kinds = TASK_OPTIONS["digits"]["model"]
        kind = cfg.task_options.get("model", kinds[0])
        if kind not in kinds:
            raise SetupRefused(f"task_options.model must be {' or '.join(kinds)}, not {kind!r}")
        self._augment = kind == "cnn"
        return _mlp() if kind == "mlp" else _cnn()

    def train_data(self, cfg: Settings) -> Any:  # noqa: ARG002 - the protocol's signature
        """Return 1 437 samples."""
        return self._train

    def val_data(self, cfg: Settings) -> Any:  # noqa: ARG002
        """Return 360 samples."""
        return self._validation

    def describe(self, item: Any) -> str:
        """Return an image in characters, and its label."""
        image, label = item
        rows = image.reshape(_SIDE, _SIDE).tolist()
        drawn = " / ".join("".join(" .:#"[min(3, int(4 * value))] for value in row) for row in rows)
        return f"a {int(label)}: {drawn}"

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the mean cross-entropy."""
        images, labels = batch
        if self._augment:
            images = augmented(images)
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return the sums of the loss and of correct predictions."""
        images, labels = batch
        logits = model(images)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Shift the whole batch by up to one pixel each way and add noise, both from the process-wide generator."""
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
