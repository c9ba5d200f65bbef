"""The part of a run's setup that a step needs."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from tolariad.core.calc.settings.model import Settings
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.step.metrics import StepMetrics

CPU = torch.device("cpu")


def setup_of(model, loss, clip=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SimpleNamespace(
        model=model,
        owners=[Owner("host", optimizer)],
        host=(Owner("host", optimizer),),
        garden=SimpleNamespace(active=False, plots={}),
        pruner=SimpleNamespace(active=False),
        device=CPU,
        moves=True,
        forward=nullcontext,
        scaling=None,
        rates=SimpleNamespace(drop_frozen_gradients=lambda: None),
        settings=Settings(),
        task=SimpleNamespace(loss=loss),
        clip=clip,
        metrics=StepMetrics(),
    )
