"""Gradients of several losses: those of the host, and auxiliary losses of seeds."""

from tolariad.trainer.gradients.aggregator import MultiSeedGradientAggregator
from tolariad.trainer.gradients.sources import SeedGradientInfo

__all__ = ["MultiSeedGradientAggregator", "SeedGradientInfo"]
