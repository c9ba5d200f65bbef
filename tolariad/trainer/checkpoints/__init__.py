"""Checkpoints: capture a run's whole state, write it to files, and restore it.

Promises: a captured state is restored bit for bit. A value that cannot be captured is refused by its path. A capture
draws from no random generator.
"""

from tolariad.trainer.checkpoints.snapshot import Snapshot

__all__ = ["Snapshot"]
