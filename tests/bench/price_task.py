"""The task whose steps are priced: the digits, repeated so that one epoch is one block; three models of three lengths.

`task_options`: `model` (mlp, tiny, deep), `steps` (in an epoch, which is a block). It has no validation.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tolariad.trainer.tasks.digits import read_digits


def layers(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    pairs = list(itertools.pairwise(widths))
    modules: list[nn.Module] = []
    for number, (before, after) in enumerate(pairs, 1):
        linear = nn.Linear(before, after)
        # As torch begins, twenty layers pass on no gradient; moments of 1e-40 then make a step longer, each loop's its
        # own way.
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        modules.append(linear)
        if number < len(pairs):
            modules.append(nn.ReLU())
    return nn.Sequential(*modules)


# deep: twenty hidden layers, small activations, so that no step maps or unmaps memory.
MODELS = {"mlp": (64, 256, 256, 10), "tiny": (64, 32, 10), "deep": (64, *[256] * 20, 10)}


def block_data(batch_size: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 64) and labels (n,) for so many batches."""
    images, labels = read_digits()
    rows = torch.arange(batch_size * steps) % len(images)
    return images[rows].contiguous(), labels[rows].contiguous()


class PriceTask:
    """The task that tolariad trains in its blocks."""

    def model(self, cfg: Any) -> nn.Module:
        return layers(*MODELS[cfg.task_options["model"]])

    def train_data(self, cfg: Any) -> Any:
        return block_data(cfg.batch_size, int(cfg.task_options["steps"]))

    def val_data(self, cfg: Any) -> Any:
        return None

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        return {}
