"""Optimizers: cautious AdamW, and optimizer state across changes of a model's architecture."""

from tolariad.trainer.optim.cautious import CautiousAdamW
from tolariad.trainer.optim.mapping import AmbiguousMapping, ParameterMapping
from tolariad.trainer.optim.plan import RebuildRefused
from tolariad.trainer.optim.rebuild import OptimizerRebuildCoordinator

__all__ = [
    "AmbiguousMapping",
    "CautiousAdamW",
    "OptimizerRebuildCoordinator",
    "ParameterMapping",
    "RebuildRefused",
]
