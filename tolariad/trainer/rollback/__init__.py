"""The trainer's part of rollbacks: snapshots in memory, and the way back to them or to a checkpoint.

It must not know: who orders either, or which target is the right one.
"""

from tolariad.trainer.rollback.desk import RollbackCommitted, RollbackDesk, RollbackUnconfirmed, standing_at
from tolariad.trainer.rollback.snapshots import SnapshotDesk

__all__ = ["RollbackCommitted", "RollbackDesk", "RollbackUnconfirmed", "SnapshotDesk", "standing_at"]
