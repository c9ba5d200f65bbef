"""The trainer's part of rollbacks: snapshots in memory, and the way back to them or to a checkpoint.

It must not know: who orders either, or which target is the right one.
"""

from tolariad.trainer.rollback.handler import RollbackCommitted, RollbackHandler, RollbackUnconfirmed, standing_at
from tolariad.trainer.rollback.snapshots import SnapshotHandler

__all__ = ["RollbackCommitted", "RollbackHandler", "RollbackUnconfirmed", "SnapshotHandler", "standing_at"]
