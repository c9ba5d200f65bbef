"""A task with trouble: an item of its data that is not a number, one that is far too large, and more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from tolariad.trainer.seeds import SeedSlot

ITEMS = 640
NOT_A_NUMBER = 17
TOO_LARGE = 300
STEP_S = 0.02


class Troubled:
    """Classes of random points, with the incidents that `task_options` names."""

    def model(self, cfg: Any) -> nn.Module:
        """Return a small network; with the option `slot` a seed can grow in it."""
        options = cfg.task_options
        self._slower, self._flipped = int(options.get("slower", 0)), int(options.get("flipped", 0))
        self._mark = Path(options.get("mark", "flipped-once"))
        self._slow_rank = int(options.get("slow_rank", 0))
        self._smoothing, self._step = 0.0, 0
        if options.get("library"):
            import incident_losses

            self._smoothing = float(incident_losses.SMOOTHING)
        slot = [SeedSlot("middle")] if options.get("slot") else []
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *slot, nn.Linear(32, 4))

    def train_data(self, cfg: Any) -> tuple[Tensor, Tensor]:
        """Return `task_options.items` points, 640 by default. `trouble` names one of them that is wrong."""
        options = cfg.task_options
        points = torch.randn(int(options.get("items", ITEMS)), 8, generator=torch.Generator().manual_seed(1))
        labels = (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()
        if options.get("trouble") == "nan":
            points[NOT_A_NUMBER, 3] = float("nan")
        if options.get("trouble") == "spike":
            points[TOO_LARGE] *= -1000
        return points, labels

    def val_data(self, cfg: Any) -> tuple[Tensor, Tensor]:
        """Return 100 other points."""
        points = torch.randn(100, 8, generator=torch.Generator().manual_seed(2))
        return points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy. It takes a while, as a larger model would."""
        is_late = bool(self._slower) and self._step + 1 >= self._slower
        is_slow = is_late or (self._slow_rank > 0 and _rank() == self._slow_rank)
        time.sleep(2 * STEP_S if is_slow else STEP_S)
        points, labels = batch
        return functional.cross_entropy(model(points), labels, label_smoothing=self._smoothing)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return the sums of loss and of correct predictions."""
        points, labels = batch
        logits = model(points)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}

    def describe(self, item: Any) -> str:
        """Return a point and its label."""
        point, label = item
        return f"label {int(label)}, largest coordinate {float(point.abs().max()):.3g}"

    def on_step_end(self, model: nn.Module, step: int) -> None:
        """Flip a bit of a weight after the wanted step, the first time that it comes there, as faulty memory does."""
        self._step = step
        if step == self._flipped and not self._mark.exists():
            self._mark.touch()
            weight = next(model.parameters())
            with torch.no_grad():
                weight.view(torch.int32)[3, 5] ^= 1 << 20


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0
