"""The trainer's part of rollbacks: take snapshots into the arena, and restore from a snapshot or a checkpoint."""

from tolariad.trainer.rollback.handler import RollbackCommitted, RollbackHandler, RollbackUnconfirmed, standing_at
from tolariad.trainer.rollback.snapshots import SnapshotHandler

__all__ = ["RollbackCommitted", "RollbackHandler", "RollbackUnconfirmed", "SnapshotHandler", "standing_at"]
