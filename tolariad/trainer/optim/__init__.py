"""Optimizers that survive surgery: cautious AdamW, state carried from one architecture to the next, rebuilds that abort whole."""

from tolariad.trainer.optim.cautious import CautiousAdamW

__all__ = ["CautiousAdamW"]
