"""A run's whole state as files, and back: capture, restore, and the codec between.

Promises: what is captured is restored to the bit, or refused by its path; capturing draws nothing from any generator.
It must not know: when a checkpoint is due, nor which one is current.
"""

from tolariad.trainer.checkpoints.snapshot import Snapshot

__all__ = ["Snapshot"]
