"""Optimizers that survive surgery: cautious AdamW, state carried from one architecture to the next, rebuilds that abort whole."""

from tolariad.trainer.optim.cautious import CautiousAdamW
from tolariad.trainer.optim.mapping import AmbiguousMapping, ParameterMapping
from tolariad.trainer.optim.plan import RebuildRefused
from tolariad.trainer.optim.preserve import DynamicOptimizerStatePreserver
from tolariad.trainer.optim.rebuild import OptimizerRebuildCoordinator

__all__ = [
    "AmbiguousMapping",
    "CautiousAdamW",
    "DynamicOptimizerStatePreserver",
    "OptimizerRebuildCoordinator",
    "ParameterMapping",
    "RebuildRefused",
]
