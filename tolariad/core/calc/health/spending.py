"""What the time of a run is spent on: after an event, until the next one of this table. Pure."""

from __future__ import annotations

from typing import Final

TRAINING: Final = "training"
STOPPED: Final = "stopped"
# By the type of the event.
SPENT: Final = {
    "RunStarted": "starting",
    "DaemonStarted": "starting",
    "TrainerStarted": "starting",
    "TrainingStarted": TRAINING,
    "RerunBegun": "making steps again",
    "RerunFinished": TRAINING,
    "RerunAborted": "starting",
    "ValidationBegun": "validating",
    "ValidationFinished": TRAINING,
    "ValidationAborted": TRAINING,
    "RollbackBegun": "rolling back",
    "RolledBack": TRAINING,
    "RollbackAborted": TRAINING,
    "RunPaused": "paused",
    "RunResumed": TRAINING,
    "RunFrozen": "frozen",
    "TrainerDied": "without a trainer",
    "RunStopped": STOPPED,
    "RunCompleted": STOPPED,
    "RunFailed": STOPPED,
}
