"""Remove from a model what the compactions of a run removed, so that exported weights can be loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.pruning.masks import HeldMasks
from tolariad.trainer.pruning.plan import read_plan
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import PruningRefused

if TYPE_CHECKING:
    from torch import nn


def shrink(model: nn.Module, compactions: str) -> None:
    """Remove the channels and heads that the run removed. The values of what stays are still to be loaded.

    `compactions`: the entry of this name in the metadata of a file that `tolaria export-weights` wrote. If it has seeds
    too, call `regrow` first. Torch-Pruning is not needed. Raises SetupRefused.
    """
    for text in json.loads(compactions):
        try:
            plan = read_plan(text)
            HeldMasks(model, plan.masks)
        except PruningRefused as refused:
            raise SetupRefused(f"the model is not the one that the run began with: {refused}") from refused
        remove(model, plan.gone)
